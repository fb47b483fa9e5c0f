//! The nearest records of a vector, exactly.
//!
//! In: the database's vectors; then one vector. Out: the nearest records with their distances, the mean of their curves, and
//! whether the vector lies where the database has records at all. Must not: approximate.
//!
//! The distance is Euclidean over z-scores of the features ([`ConfigVector::features`]); the paper names none. With `k` above 1
//! the curves are averaged with weights `1 / distance` (k-nearest-neighbour regression with inverse-distance weights).

use std::num::NonZero;

use kiddo::{ImmutableKdTree, SquaredEuclidean};

use crate::database::Database;
use crate::vector::{ConfigVector, DIMENSIONS, NAMES, VectorError};
use terrace_tuning::curve::Curve;

/// Records whose distance to their own nearest is looked at for the spacing of the database.
const SPACING_SAMPLES: usize = 256;
/// A vector further from its nearest record than this share of the records are from theirs is out of what is covered.
const SPACING_QUANTILE: f64 = 0.99;
/// And by this factor: the interior of a lattice is at most about so much further from a point than the points from each other.
const SPACING_FACTOR: f64 = 2.0;

/// A record that was found.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Neighbour {
    /// Its number in the database.
    pub record: usize,
    /// Its distance, in standard deviations.
    pub distance: f64,
}

/// What the database has to say of a vector.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The nearest records, nearest first.
    pub neighbours: Vec<Neighbour>,
    /// The mean of their curves.
    pub curve: Curve,
    /// Least and greatest loss among the neighbours, at 1 % to 100 %.
    pub spread: (Curve, Curve),
    /// Why the database does not cover the vector, if it does not.
    pub uncovered: Option<String>,
}

/// Why a database cannot be made ready for queries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IndexError(
    /// What the tree says.
    pub String,
);

/// A database made ready for queries.
pub struct Index {
    database: Database,
    tree: ImmutableKdTree<f32, DIMENSIONS>,
    low: [f64; DIMENSIONS],
    high: [f64; DIMENSIONS],
    spacing: f64,
}

impl Index {
    /// Indexes the records.
    ///
    /// # Errors
    /// When the tree cannot be built: more than 4,294,967,295 records.
    pub fn new(database: Database) -> Result<Index, IndexError> {
        let z = database.meta().z_score;
        let points: Vec<[f32; DIMENSIONS]> = database.vectors().iter().map(|vector| z.apply(vector)).collect();
        let tree = ImmutableKdTree::new_from_slice(&points).map_err(|error| IndexError(format!("{error:?}")))?;
        let (mut low, mut high) = ([f64::INFINITY; DIMENSIONS], [f64::NEG_INFINITY; DIMENSIONS]);
        for vector in database.vectors() {
            for (k, value) in vector.to_array().into_iter().enumerate() {
                low[k] = low[k].min(value);
                high[k] = high[k].max(value);
            }
        }
        let mut index = Index { database, tree, low, high, spacing: f64::INFINITY };
        index.spacing = index.usual_spacing(&points);
        Ok(index)
    }

    /// How far records usually are from their nearest.
    fn usual_spacing(&self, points: &[[f32; DIMENSIONS]]) -> f64 {
        let step = (points.len() / SPACING_SAMPLES).max(1);
        let mut distances: Vec<f64> =
            points.iter().step_by(step).filter_map(|point| self.nearest(point, 2).last().map(|n| n.distance)).collect();
        distances.sort_by(f64::total_cmp);
        let place = ((distances.len() as f64 * SPACING_QUANTILE) as usize).min(distances.len().saturating_sub(1));
        distances.get(place).copied().unwrap_or(f64::INFINITY) * SPACING_FACTOR
    }

    /// The database.
    pub const fn database(&self) -> &Database {
        &self.database
    }

    /// The `k` nearest records of a point, nearest first.
    fn nearest(&self, point: &[f32; DIMENSIONS], k: usize) -> Vec<Neighbour> {
        let neighbour =
            |record: u32, square: f32| Neighbour { record: record as usize, distance: f64::from(square).sqrt() };
        if k <= 1 {
            let found = self.tree.query(point).nearest_one::<SquaredEuclidean<f32>>().execute();
            return vec![neighbour(found.item, found.distance)];
        }
        let count = NonZero::new(k).unwrap_or(NonZero::<usize>::MIN);
        let found = self.tree.query(point).nearest_n::<SquaredEuclidean<f32>>(count).execute();
        found.into_iter().map(|found| neighbour(found.item, found.distance)).collect()
    }

    /// The nearest `k` records of a vector; `k` is at least 1.
    pub fn neighbours(&self, vector: &ConfigVector, k: usize) -> Vec<Neighbour> {
        self.nearest(&self.database.meta().z_score.apply(vector), k)
    }

    /// What the `k` nearest records say of a vector.
    ///
    /// # Errors
    /// When the vector cannot be that of a program.
    pub fn query(&self, vector: &ConfigVector, k: usize) -> Result<Answer, VectorError> {
        vector.check()?;
        let neighbours = self.neighbours(vector, k.clamp(1, self.database.len()));
        let curves: Vec<Curve> = neighbours.iter().map(|found| self.database.curve(found.record)).collect();
        // A record at no distance is the answer itself.
        let weight = |found: &Neighbour| 1.0 / found.distance.max(1e-6);
        let curve = Curve::mean(neighbours.iter().map(weight).zip(&curves));
        let extreme = |pick: fn(f64, f64) -> f64, start: f64| {
            let at = |place: usize| curves.iter().map(|curve| curve.losses()[place]).fold(start, pick);
            Curve::of_losses(std::array::from_fn(at))
        };
        let spread = (extreme(f64::min, f64::INFINITY), extreme(f64::max, f64::NEG_INFINITY));
        let uncovered = self.why_uncovered(vector, neighbours[0].distance);
        Ok(Answer { neighbours, curve, spread, uncovered })
    }

    fn why_uncovered(&self, vector: &ConfigVector, distance: f64) -> Option<String> {
        let outside =
            vector.to_array().into_iter().enumerate().find(|&(k, value)| value < self.low[k] || value > self.high[k]);
        if let Some((k, value)) = outside {
            return Some(format!("{} is {value}, and the records have {} to {}", NAMES[k], self.low[k], self.high[k]));
        }
        (distance > self.spacing).then(|| {
            format!(
                "the nearest record is {distance:.2} standard deviations away, and records here are at most {:.2} from each other",
                self.spacing
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::tests::small;

    #[test]
    fn the_nearest_is_the_nearest_by_hand() {
        let database = small(500);
        let z = database.meta().z_score;
        let points: Vec<_> = database.vectors().iter().map(|vector| z.apply(vector)).collect();
        let index = Index::new(database).unwrap();
        for number in 0..50 {
            let query = crate::sampling::Design::new(&machine(), 99).vector(number);
            let point = z.apply(&query);
            let mut by_hand: Vec<(f64, usize)> = points
                .iter()
                .enumerate()
                .map(|(n, other)| {
                    let square: f32 = point.iter().zip(other).map(|(a, b)| (a - b).powi(2)).sum();
                    (f64::from(square).sqrt(), n)
                })
                .collect();
            by_hand.sort_by(|a, b| a.0.total_cmp(&b.0));
            for k in [1, 5] {
                let found = index.neighbours(&query, k);
                assert_eq!(found.len(), k);
                for (found, hand) in found.iter().zip(&by_hand) {
                    assert!((found.distance - hand.0).abs() < 1e-4, "{found:?} {hand:?}");
                }
            }
        }
    }

    fn machine() -> terrace_machine::preset::Machine {
        terrace_machine::preset::Machine::preset("optane-6252").unwrap()
    }

    #[test]
    fn a_record_answers_for_itself_and_strangers_are_told_apart() {
        let index = Index::new(small(500)).unwrap();
        let own = index.database().vectors()[123];
        for k in [1, 4] {
            let answer = index.query(&own, k).unwrap();
            assert_eq!((answer.neighbours[0].record, answer.uncovered.as_deref()), (123, None));
            assert!((answer.curve.loss(0.5) / index.database().curve(123).loss(0.5) - 1.0).abs() < 1e-3);
        }
        let huge = ConfigVector { resident_bytes: 1e15, ..own };
        assert!(index.query(&huge, 1).unwrap().uncovered.unwrap().starts_with("rss is 1000000000000000"));
        assert!(index.query(&ConfigVector { threads: 0.0, ..own }, 1).is_err());
        assert_eq!(index.query(&own, 10_000).unwrap().neighbours.len(), 500, "k is at most the records there are");
    }
}
