//! The configuration vector: what an interval of a program is to the database.
//!
//! In: counts over an interval of any length. Out: eight figures for the interval of the database, and the eight features a
//! distance is taken over. Must not: hold anything that the paper's vector does not.

/// Figures of a vector.
pub const DIMENSIONS: usize = 8;
/// Names of the figures, in the paper's order.
pub const NAMES: [&str; DIMENSIONS] = ["pacc_f", "pacc_s", "pm_de", "pm_pr", "ai", "rss", "hot_thr", "threads"];
/// Seconds that the counts of a vector refer to: the paper's tuning interval (section 6.2).
pub const INTERVAL_SECONDS: f64 = 2.5;

/// What a program did in an interval (section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct ConfigVector {
    /// Accesses that reached fast memory.
    pub fast_accesses: f64,
    /// Accesses that reached slow memory.
    pub slow_accesses: f64,
    /// Pages demoted.
    pub demotions: f64,
    /// Pages promoted.
    pub promotions: f64,
    /// Arithmetic operations an access to memory.
    pub intensity: f64,
    /// Resident bytes.
    pub resident_bytes: f64,
    /// Accesses to a slow page that promote it.
    pub hot_threshold: f64,
    /// Threads.
    pub threads: f64,
}

/// What is wrong with a vector.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}, expected {wanted}")]
pub struct VectorError {
    /// The figure.
    pub name: &'static str,
    /// What it was.
    pub value: String,
    /// What it must be.
    pub wanted: &'static str,
}

impl ConfigVector {
    /// The vector of eight numbers in the paper's order: pacc_f, pacc_s, pm_de, pm_pr, AI, RSS in bytes, hot_thr, num_threads.
    pub const fn from_array(values: [f64; DIMENSIONS]) -> ConfigVector {
        let [fast_accesses, slow_accesses, demotions, promotions, intensity, resident_bytes, hot_threshold, threads] =
            values;
        ConfigVector {
            fast_accesses,
            slow_accesses,
            demotions,
            promotions,
            intensity,
            resident_bytes,
            hot_threshold,
            threads,
        }
    }

    /// The eight numbers in the paper's order.
    pub const fn to_array(self) -> [f64; DIMENSIONS] {
        [
            self.fast_accesses,
            self.slow_accesses,
            self.demotions,
            self.promotions,
            self.intensity,
            self.resident_bytes,
            self.hot_threshold,
            self.threads,
        ]
    }

    /// Checks that the figures can be those of a program.
    ///
    /// # Errors
    /// When one is not finite, negative, or below what makes sense: a page, a thread, a threshold of two.
    pub fn check(&self) -> Result<(), VectorError> {
        for (name, value) in NAMES.into_iter().zip(self.to_array()) {
            let (fine, wanted) = match name {
                "rss" => (value >= 4096.0, "at least 4096 bytes, one page"),
                "hot_thr" => {
                    (value >= 2.0, "2 or more: with 1 every page accessed once would move, and eq. 4 divides by 0")
                }
                "threads" => (value >= 1.0, "1 or more"),
                _ => (value >= 0.0, "0 or more"),
            };
            if !(fine && value.is_finite()) {
                return Err(VectorError { name, value: value.to_string(), wanted });
            }
        }
        if self.fast_accesses + self.slow_accesses < 1.0 {
            return Err(VectorError {
                name: "pacc_f",
                value: "0".to_owned(),
                wanted: "some accesses: a program that touches no memory needs none",
            });
        }
        Ok(())
    }

    /// The same program over the interval of the database, from counts over `seconds`.
    #[must_use]
    pub fn over_interval(self, seconds: f64) -> ConfigVector {
        let factor = INTERVAL_SECONDS / seconds;
        ConfigVector {
            fast_accesses: self.fast_accesses * factor,
            slow_accesses: self.slow_accesses * factor,
            demotions: self.demotions * factor,
            promotions: self.promotions * factor,
            ..self
        }
    }

    /// The features a distance is taken over, before z-scores. The paper does not say: counts, intensity and size span
    /// decades, so their logarithms are taken; threshold and threads are taken as they are.
    pub fn features(&self) -> [f64; DIMENSIONS] {
        let mut features = self.to_array();
        for feature in &mut features[..6] {
            *feature = feature.ln_1p() / std::f64::consts::LN_10;
        }
        features
    }

    /// Resident pages of 4 KiB.
    pub fn resident_pages(&self) -> f64 {
        self.resident_bytes / 4096.0
    }
}

/// Means and standard deviations of the features.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ZScore {
    /// Means.
    pub mean: [f64; DIMENSIONS],
    /// Standard deviations; 1 where a feature does not vary.
    pub deviation: [f64; DIMENSIONS],
}

impl ZScore {
    /// Of these vectors.
    pub fn of(vectors: &[ConfigVector]) -> ZScore {
        let (mut mean, mut square) = ([0.0; DIMENSIONS], [0.0; DIMENSIONS]);
        let count = vectors.len().max(1) as f64;
        for features in vectors.iter().map(ConfigVector::features) {
            for k in 0..DIMENSIONS {
                mean[k] += features[k] / count;
            }
        }
        for features in vectors.iter().map(ConfigVector::features) {
            for k in 0..DIMENSIONS {
                square[k] += (features[k] - mean[k]).powi(2) / count;
            }
        }
        let deviation = square.map(|square| if square > 1e-18 { square.sqrt() } else { 1.0 });
        ZScore { mean, deviation }
    }

    /// The z-scores of a vector.
    pub fn apply(&self, vector: &ConfigVector) -> [f32; DIMENSIONS] {
        let features = vector.features();
        std::array::from_fn(|k| ((features[k] - self.mean[k]) / self.deviation[k]) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: ConfigVector = ConfigVector::from_array([1e8, 1e6, 10.0, 20.0, 5.0, 1e9, 2.0, 4.0]);

    #[test]
    fn the_order_is_the_papers_and_nonsense_is_named() {
        assert_eq!(ConfigVector::from_array(FINE.to_array()), FINE);
        assert!(FINE.check().is_ok());
        for (place, value, says) in [
            (0, f64::NAN, "pacc_f is NaN"),
            (1, -1.0, "pacc_s is -1"),
            (4, f64::INFINITY, "ai is inf"),
            (5, 100.0, "rss is 100"),
            (6, 1.0, "hot_thr is 1"),
            (7, 0.0, "threads is 0"),
        ] {
            let mut values = FINE.to_array();
            values[place] = value;
            let error = ConfigVector::from_array(values).check().unwrap_err().to_string();
            assert!(error.starts_with(says), "{error}");
        }
        let idle = ConfigVector { fast_accesses: 0.0, slow_accesses: 0.0, ..FINE };
        assert!(idle.check().is_err());
    }

    #[test]
    fn counts_follow_the_interval_and_the_rest_does_not() {
        let longer = FINE.over_interval(5.0);
        assert_eq!((longer.fast_accesses, longer.demotions), (5e7, 5.0));
        assert_eq!((longer.intensity, longer.resident_bytes, longer.threads), (5.0, 1e9, 4.0));
    }
}
