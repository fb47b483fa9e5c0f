//! What a performance database costs: records a second, time to write, read and index it, time of a query.
//!
//! `cargo run --release -p terrace-sizing --example database_cost [RECORDS [COMPUTED]]`: one thread, one JSON object. Where time is
//! short, COMPUTED records are computed and their run times repeated; what is indexed and asked are all RECORDS vectors.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_types, clippy::disallowed_methods, missing_docs)]

use std::time::Instant;

use terrace_machine::preset::Machine;
use terrace_sizing::database::{Database, Origin, machine_checksum};
use terrace_sizing::microbench::FastDivisor;
use terrace_sizing::sampling::Design;
use terrace_sizing::{Index, model};

fn main() {
    let argument = |place: usize| std::env::args().nth(place).map(|text| text.parse::<u64>().unwrap());
    let records = argument(1).unwrap_or(100_000);
    let computed = argument(2).unwrap_or(records);
    let machine = Machine::preset("optane-6252").unwrap();
    let design = Design::new(&machine, 1);
    let began = Instant::now();
    let times: Vec<[f32; 100]> = (0..computed)
        .map(|number| model::record(&design.vector(number), &machine, FastDivisor::Threshold).unwrap())
        .collect();
    let build = began.elapsed().as_secs_f64();
    let vectors: Vec<_> = (0..records).map(|number| design.vector(number)).collect();
    let seconds: Vec<f32> = (0..records).flat_map(|number| times[(number % computed) as usize]).collect();
    let origin = Origin {
        machine: machine.name.clone(),
        machine_checksum: machine_checksum(&machine),
        seed: 1,
        fast_divisor: FastDivisor::Threshold,
    };
    let database = Database::new(origin, vectors, seconds).unwrap();
    let began = Instant::now();
    let bytes = database.to_parquet().unwrap();
    let (write, size) = (began.elapsed().as_secs_f64(), bytes.len());
    let began = Instant::now();
    let database = Database::from_parquet(bytes.into()).unwrap();
    let read = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let index = Index::new(database).unwrap();
    let indexed = began.elapsed().as_secs_f64();
    // Vectors that are no records: of another seed's design.
    let others = Design::new(&machine, 2);
    let asked: Vec<_> = (0..2000).map(|number| others.vector(number)).collect();
    let query = |k: usize| {
        let mut each: Vec<f64> = asked
            .iter()
            .map(|vector| {
                let began = Instant::now();
                std::hint::black_box(index.neighbours(vector, k));
                began.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        each.sort_by(f64::total_cmp);
        (each[each.len() / 2], each[each.len() * 9 / 10])
    };
    let ((one, one_p90), (eight, eight_p90)) = (query(1), query(8));
    println!(
        "{{\"records\": {records}, \"computed_records\": {computed}, \"records_per_second_one_thread\": {:.0}, \
         \"write_seconds\": {write:.4}, \"file_bytes\": {size}, \"read_seconds\": {read:.4}, \"index_seconds\": {indexed:.4}, \
         \"query_microseconds_median\": {one:.2}, \"query_microseconds_p90\": {one_p90:.2}, \
         \"query_k8_microseconds_median\": {eight:.2}, \"query_k8_microseconds_p90\": {eight_p90:.2}}}",
        computed as f64 / build
    );
}
