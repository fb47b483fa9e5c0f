//! The rules of this repository, as tests; there is nothing here but those. See CONTRIBUTING.md for the reasons.
