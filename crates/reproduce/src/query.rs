//! How long a performance database takes to be indexed and to answer: the one figure that is measured.
//!
//! In: a database. Out: [`Query`]. Must not: build a database.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use terrace_sizing::index::IndexError;
use terrace_sizing::{Database, Index};

use crate::outcome::round;

/// Queries to time.
const QUERIES: usize = 1000;

/// What was measured, and of how large a database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Query {
    pub records: usize,
    pub index_millis: f64,
    pub query_micros: f64,
}

impl Query {
    /// Indexes the database once more, and asks it for its own records.
    pub(crate) fn time(database: &Database) -> Result<Query, IndexError> {
        let began = Instant::now();
        let index = Index::new(database.clone())?;
        let mut index_millis = began.elapsed().as_secs_f64() * 1e3;
        let vectors = &database.vectors()[..database.len().min(QUERIES)];
        let began = Instant::now();
        for vector in vectors {
            std::hint::black_box(index.neighbours(vector, 1));
        }
        let mut query_micros = began.elapsed().as_secs_f64() * 1e6 / vectors.len().max(1) as f64;
        [&mut index_millis, &mut query_micros].into_iter().for_each(round);
        Ok(Query { records: database.len(), index_millis, query_micros })
    }
}
