//! The rules of this repository, as tests. CONTRIBUTING.md has the reasons.
//!
//! Entry: `tests/`.
//! In: the files of this repository.
//! Out: what breaks a rule, by file and line.
//! Must not: hold anything but tests.
