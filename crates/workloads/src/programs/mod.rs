//! The catalogue: one file a program.
//!
//! In: nothing. Out: [`ALL`], in the order the documentation lists them. Must not: hold any algorithm itself.

mod btree;
mod gap_bc;
mod gap_bfs;
mod gap_pagerank;
mod gap_sssp;
mod graph500;
mod gups;
mod hot_cold;
mod hot_set;
mod liblinear;
mod ligra;
mod ligra_bfs;
mod ligra_pagerank;
mod mcf;
mod memcached;
mod mis;
mod npb_ft;
mod npb_grid;
mod npb_lu;
mod npb_sp;
mod scan_random;
mod silo;
mod silo_engine;
mod silo_tpcc;
mod sysbench;
mod xsbench;

use crate::program::WorkloadInfo;

/// All workloads.
pub static ALL: &[WorkloadInfo] = &[
    npb_ft::INFO,
    npb_lu::INFO,
    npb_sp::INFO,
    graph500::INFO,
    btree::INFO,
    silo::INFO,
    silo_tpcc::INFO,
    gap_pagerank::INFO,
    gap_bfs::INFO,
    gap_sssp::INFO,
    gap_bc::INFO,
    mis::INFO,
    ligra_bfs::INFO,
    ligra_pagerank::INFO,
    xsbench::INFO,
    liblinear::INFO,
    mcf::INFO,
    sysbench::INFO,
    memcached::INFO,
    gups::INFO,
    gups::SHIFTING,
    scan_random::INFO,
    hot_cold::INFO,
];
