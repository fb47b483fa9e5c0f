//! The form of a file of experiments, as TOML has it.
//!
//! In: text. Out: tables and keys with their places in the text. Must not: judge what a value means; `experiments` does.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use crate::error::Error;

/// Text that remembers where it stood.
pub(crate) type Text = Spanned<String>;

/// A file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawFile {
    pub paper: RawPaper,
    #[serde(default)]
    pub settings: BTreeMap<Text, RawSetting>,
    #[serde(default)]
    pub groups: BTreeMap<Text, Vec<Text>>,
    #[serde(default)]
    pub row: Vec<RawRow>,
    #[serde(default)]
    pub not_built: Vec<RawNotBuilt>,
}

/// The paper, or whatever the figures come from.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPaper {
    pub prefix: Text,
    pub name: Text,
    pub title: String,
    pub agree: Text,
    pub kind: Option<Text>,
    pub finding: Option<String>,
}

/// Where experiments take place.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSetting {
    pub like: Option<Text>,
    pub workload: Option<Text>,
    pub size: Option<Text>,
    pub fast: Option<Text>,
    pub threads: Option<usize>,
    pub machine: Option<Text>,
    pub pages: Option<Text>,
    pub options: Option<BTreeMap<String, String>>,
    pub operations: Option<u64>,
    pub scaled_operations: Option<u64>,
    pub operations_by_size: Option<RawBySize>,
    pub mmu: Option<RawMmu>,
    pub scale_at_most: Option<u32>,
    pub quick_scale_at_most: Option<u32>,
    pub room_over_peak: Option<f64>,
}

/// How much is done, by the size of the program.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawBySize {
    pub one_per: Text,
    pub at_least: u64,
    pub times: u64,
}

/// The modelled MMU.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawMmu {
    pub miss_cycles: u32,
}

/// A figure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRow {
    pub id: Text,
    pub quantity: String,
    pub unit: String,
    pub source: String,
    pub measure: Text,
    pub paper: Option<f64>,
    pub paper_at_least: Option<f64>,
    pub paper_at_most: Option<f64>,
    pub paper_each: Option<Vec<f64>>,
    pub paper_loss: Option<f64>,
    pub paper_most: Option<f64>,
    pub kind: Option<Text>,
    pub stated: Option<String>,
    pub agree: Option<Text>,
    pub judge_from: Option<f64>,
    pub rivals_tried: Option<usize>,
    pub cause: Option<String>,
    pub cause_row: Option<Text>,
    pub of: Option<Text>,
    pub by: Option<Text>,
    pub first: Option<usize>,
    pub expected: Option<Text>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub target: Option<Text>,
    pub prediction_error: Option<Text>,
    #[serde(default)]
    pub settings: Vec<Text>,
    #[serde(default)]
    pub policies: Vec<Text>,
    #[serde(default)]
    pub at: Vec<Text>,
    #[serde(default)]
    pub cases: Vec<Text>,
}

/// A figure without a row.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawNotBuilt {
    pub id: Text,
    pub why: String,
}

/// Reads a file's text.
///
/// # Errors
/// When it is no TOML, a key is missing or unknown, or a value is of another kind.
pub(crate) fn read(file: &str, text: &str) -> Result<RawFile, Error> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = line_of(text, at);
        let its_text = text.lines().nth(line - 1).unwrap_or("").trim().to_owned();
        Error::Syntax { file: file.to_owned(), line, text: its_text, why: error.message().to_owned() }
    })
}

/// The line, from 1, in which a byte of the text stands.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}
