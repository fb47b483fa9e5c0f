//! What the guest sends over its second serial port.
//!
//! In: the bytes of that port. Out: [`Results`]: values by name, how each step ended, when the guest was up and when it was
//! done. Must not: guess: a frame that is cut off is an error or, at the very end, simply not there yet.
//!
//! Frames, each begun by a line: `@begin CENTISECONDS` · `@value NAME BYTES` followed by that number of bytes and a line end ·
//! `@step NAME EXIT CENTISECONDS` · `@end CENTISECONDS`. A value is JSON; anything else is kept as text.

use std::collections::BTreeMap;

use serde_json::Value;

/// Everything that came back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Guest time at which the steps began, seconds since its boot.
    pub began_seconds: Option<f64>,
    /// Values by name.
    pub values: BTreeMap<String, Value>,
    /// How the steps ended, in their order.
    pub steps: Vec<StepEnd>,
    /// Guest time at which all was done, if it came that far.
    pub ended_seconds: Option<f64>,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StepEnd {
    /// Its name.
    pub name: String,
    /// Its exit code.
    pub exit: i32,
    /// How long it took, in guest time.
    pub seconds: f64,
}

/// A line of the results port that is not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the results port said {0:?}, which is no frame")]
pub struct FrameError(
    /// The line's first hundred characters.
    pub String,
);

impl Results {
    /// Reads the frames. What follows the last whole frame is left out; [`Results::ended_seconds`] tells if that was all.
    ///
    /// # Errors
    /// With the line that is not a frame.
    pub fn parse(bytes: &[u8]) -> Result<Results, FrameError> {
        let mut results = Results::default();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&rest[..end]).trim_end_matches('\r').to_owned();
            rest = &rest[end + 1..];
            let words: Vec<&str> = line.split(' ').collect();
            let bad = || FrameError(line.chars().take(100).collect());
            match words[..] {
                ["@begin", time] => results.began_seconds = Some(seconds(time).ok_or_else(bad)?),
                ["@end", time] => results.ended_seconds = Some(seconds(time).ok_or_else(bad)?),
                ["@step", name, exit, time] => results.steps.push(StepEnd {
                    name: name.to_owned(),
                    exit: exit.parse().map_err(|_| bad())?,
                    seconds: seconds(time).ok_or_else(bad)?,
                }),
                ["@value", name, length] => {
                    let length: usize = length.parse().map_err(|_| bad())?;
                    if rest.len() <= length {
                        return Ok(results);
                    }
                    let text = String::from_utf8_lossy(&rest[..length]).into_owned();
                    rest = &rest[length + 1..];
                    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
                    results.values.insert(name.to_owned(), value);
                }
                _ => return Err(bad()),
            }
        }
        Ok(results)
    }
}

fn seconds(centiseconds: &str) -> Option<f64> {
    centiseconds.parse::<u64>().ok().map(|count| count as f64 / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn frames_become_values_and_steps() {
        let text = "@begin 231\n@value topology 14\n{\"tiers\":\n[2]}\n@value note 5\n a\nb \n@step topology 0 37\n@step run 3 1200\n@end 1512\n";
        let results = Results::parse(text.as_bytes()).unwrap();
        assert_eq!(results.values["topology"], json!({"tiers": [2]}));
        assert_eq!(results.values["note"], json!(" a\nb "));
        assert_eq!(results.steps[1], StepEnd { name: "run".to_owned(), exit: 3, seconds: 12.0 });
        assert_eq!((results.began_seconds, results.ended_seconds), (Some(2.31), Some(15.12)));
    }

    #[test]
    fn a_guest_that_died_leaves_what_was_whole() {
        let results = Results::parse(b"@begin 2\n@value a 1\n1\n@value b 100\n{\"cut").unwrap();
        assert_eq!(results.values.len(), 1);
        assert_eq!(results.ended_seconds, None);
        assert_eq!(Results::parse(b"@begin 2\n@ste").unwrap().steps.len(), 0);
    }

    #[test]
    fn noise_is_told() {
        for text in ["hello\n", "@begin soon\n", "@step a b c\n"] {
            assert_eq!(Results::parse(text.as_bytes()), Err(FrameError(text.trim_end().to_owned())), "{text}");
        }
    }
}
