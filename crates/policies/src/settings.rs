//! Settings of a policy as people write them, turned into typed values exactly once.
//!
//! In: pairs of key and text, and a policy's table of settings, which has each default and nobody else. Out: values, or an error that names
//! the key, the text and what was expected. Must not: let a misspelt key pass.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use terrace_core::units::{parse_duration, parse_share};

use crate::PolicyInfo;

/// Why a policy cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// There is no policy of that name.
    #[error("there is no policy {name:?}; {known}")]
    UnknownPolicy {
        /// The name asked for.
        name: String,
        /// The nearest, and all there are.
        known: String,
    },
    /// The policy has no such setting.
    #[error("policy {policy} has no setting {key:?}; it has: {known}")]
    UnknownKey {
        /// The policy.
        policy: &'static str,
        /// The key.
        key: String,
        /// The keys it has.
        known: String,
    },
    /// The text is no value of its kind, or out of range.
    #[error("setting {key}={text}: expected {wanted}")]
    BadValue {
        /// The key.
        key: String,
        /// The text.
        text: String,
        /// What was expected.
        wanted: String,
    },
}

/// Settings not yet taken.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    texts: BTreeMap<String, String>,
    defaults: BTreeMap<&'static str, &'static str>,
}

impl Settings {
    /// Settings from pairs of key and text; of a key given twice the last counts.
    pub fn from_pairs<K: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (K, V)>) -> Settings {
        let texts = pairs.into_iter().map(|(key, text)| (key.into(), text.into())).collect();
        Settings { texts, defaults: BTreeMap::new() }
    }

    /// The same for a policy: what is not given is as its table says.
    pub fn for_policy(mut self, policy: &PolicyInfo) -> Settings {
        self.defaults = policy.settings.iter().map(|setting| (setting.key, setting.default)).collect();
        self
    }

    /// Other defaults than the table's, where one setting, such as a preset, decides on others.
    pub fn prefer(&mut self, defaults: &[(&'static str, &'static str)]) {
        self.defaults.extend(defaults.iter().copied());
    }

    /// Whether somebody chose the value of this setting, which is not yet taken.
    pub fn is_given(&self, key: &str) -> bool {
        self.texts.contains_key(key)
    }

    /// Takes a number that must lie in `range`.
    ///
    /// # Errors
    /// When the text is no number or lies outside (NaN lies outside of everything).
    pub fn number<T>(&mut self, key: &str, range: std::ops::RangeInclusive<T>) -> Result<T, SettingsError>
    where
        T: FromStr + PartialOrd + Display + Copy,
    {
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        self.take(key, &wanted, |text| text.parse::<T>().ok().filter(|value| range.contains(value)))
    }

    /// Takes a duration such as 100ms; it must be longer than zero.
    ///
    /// # Errors
    /// When the text is no duration, or zero.
    pub fn duration(&mut self, key: &str) -> Result<Duration, SettingsError> {
        self.take(key, "a duration such as 100ms or 10s", |text| {
            parse_duration(text).ok().filter(|span| !span.is_zero())
        })
    }

    /// Takes a share such as 50%.
    ///
    /// # Errors
    /// When the text is no share.
    pub fn share(&mut self, key: &str) -> Result<f64, SettingsError> {
        self.take(key, "a share between 0% and 100%", |text| parse_share(text).ok())
    }

    /// Takes a switch: on or off.
    ///
    /// # Errors
    /// When the text is neither.
    pub fn switch(&mut self, key: &str) -> Result<bool, SettingsError> {
        self.take(key, "on or off", |text| match text {
            "on" | "true" | "yes" | "1" => Some(true),
            "off" | "false" | "no" | "0" => Some(false),
            _ => None,
        })
    }

    /// Takes one of several words.
    ///
    /// # Errors
    /// When the text is none of them.
    pub fn choice<T: Copy>(&mut self, key: &str, choices: &[(&str, T)]) -> Result<T, SettingsError> {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let wanted = format!("one of {}", words.join(", "));
        self.take(key, &wanted, |text| choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value))
    }

    /// Takes any other kind of value; `parse` answers `None` for a text that is none.
    ///
    /// # Errors
    /// When it does.
    pub fn take<T>(
        &mut self,
        key: &str,
        wanted: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, SettingsError> {
        let text =
            self.texts.remove(key).unwrap_or_else(|| self.defaults.get(key).copied().unwrap_or_default().to_owned());
        match parse(text.trim()) {
            Some(value) => Ok(value),
            None => Err(SettingsError::BadValue { key: key.to_owned(), text, wanted: wanted.to_owned() }),
        }
    }

    /// Refuses what was not taken.
    pub(crate) fn finish(self, policy: &PolicyInfo) -> Result<(), SettingsError> {
        match self.texts.into_keys().next() {
            None => Ok(()),
            Some(key) => Err(SettingsError::UnknownKey {
                policy: policy.name,
                key,
                known: policy.settings.iter().map(|setting| setting.key).collect::<Vec<_>>().join(", "),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_name_key_text_and_range() {
        let mut settings = Settings::from_pairs([("beta", "NaN"), ("interval", "0s"), ("plan", "wild")]);
        let error = settings.number("beta", 0.0..=1.0).unwrap_err().to_string();
        assert_eq!(error, "setting beta=NaN: expected a number from 0 to 1");
        assert!(settings.duration("interval").is_err());
        assert!(settings.choice("plan", &[("tame", 1)]).unwrap_err().to_string().contains("tame"));
    }
}
