//! Stands in for the loader where the feature `bpf` is off.
//!
//! In: nothing. Out: [`BpfError::FeatureOff`]. Must not: be constructible.

use std::os::fd::BorrowedFd;

use crate::{BpfError, LifeEvent, SpaceMark, TABLE_ENTRIES, Variant};

/// Copies of page tables. In this build there are none.
#[derive(Debug)]
pub struct PageTables(std::convert::Infallible);

impl PageTables {
    /// Always refuses.
    ///
    /// # Errors
    /// Always [`BpfError::FeatureOff`].
    pub fn open(_slots: usize) -> Result<PageTables, BpfError> {
        Err(BpfError::FeatureOff)
    }

    /// Never called.
    pub fn variant(&self) -> Variant {
        match self.0 {}
    }

    /// Never called.
    pub fn slots(&self) -> usize {
        match self.0 {}
    }

    /// Never called.
    pub fn physical_address_mask(&self) -> u64 {
        match self.0 {}
    }

    /// Never called.
    pub fn direct_map(&self) -> u64 {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub fn copy(&mut self, _pid: u32, _blocks: &[u64]) -> Result<SpaceMark, BpfError> {
        match self.0 {}
    }

    /// Never called.
    pub fn head(&self, _slot: usize) -> u64 {
        match self.0 {}
    }

    /// Never called.
    pub fn table(&self, _slot: usize) -> &[u64; TABLE_ENTRIES] {
        match self.0 {}
    }
}

/// allocations and frees of pages. In this build none are seen.
#[derive(Debug)]
pub struct LifeCycle(std::convert::Infallible);

impl LifeCycle {
    /// Always refuses.
    ///
    /// # Errors
    /// Always [`BpfError::FeatureOff`].
    pub fn open() -> Result<LifeCycle, BpfError> {
        Err(BpfError::FeatureOff)
    }

    /// Never called.
    pub fn functions(&self) -> &[&'static str] {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub fn watch(&self, _pid: u32) -> Result<(), BpfError> {
        match self.0 {}
    }

    /// Never called.
    pub fn forget(&self, _pid: u32) {
        match self.0 {}
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub fn drain(&mut self, _into: &mut Vec<LifeEvent>) -> Result<(), BpfError> {
        match self.0 {}
    }

    /// Never called.
    pub fn lost(&self) -> u64 {
        match self.0 {}
    }

    /// Never called.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}
