//! Loads the programs that tell of allocations and frees of pages, attaches those that the kernel has a function for, and reads what
//! they tell.
//!
//! In: the object shipped with the crate, pids to watch. Out: [`LifeEvent`]s in the order they happened, and how many were lost.
//! Must not: take an event for more than it says; who is alive, the reader knows.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Func, Struct};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel, RingBuffer, RingBufferBuilder};

use crate::{BpfError, LifeEvent, LifeKind};

static OBJECT: &[u8] = include_bytes!("../object/life_cycle.bpf.o");

/// Where births are seen, newest kernels first: (function, program). The first that the kernel has is taken.
const BIRTHS: [(&str, &str); 2] = [("folio_add_new_anon_rmap", "born_folio"), ("page_add_new_anon_rmap", "born_page")];
/// Where deaths within one memory area are seen. All that the kernel has are taken: not all of them call each other.
const ZAPS: [(&str, &str); 5] = [
    ("zap_vma_range", "zapped_area"),
    ("zap_vma_range_batched", "zapped_area_batched"),
    ("zap_page_range_single_batched", "zapped_batched"),
    ("zap_page_range_single", "zapped_single"),
    ("zap_page_range", "zapped_old"),
];
/// Notes whose pids are meant: those of this process's own pid namespace. It is run once, before the others are attached.
const NOTE: &str = "note_namespace";
/// Where deaths of whole stretches are seen.
const UNMAP: &str = "unmap_vmas";
/// The C source's `struct life_event`: two numbers of eight bytes and two of four.
const EVENT_BYTES: usize = 24;

/// Allocations and frees of the pages of watched processes.
#[derive(Debug)]
pub struct LifeCycle {
    functions: Vec<&'static str>,
    told: Rc<RefCell<Vec<LifeEvent>>>,
    ring: RingBuffer<'static>,
    managed: MapHandle,
    lost: MapHandle,
    // Detached before the programs go.
    _links: Vec<Link>,
    _object: Object,
}

impl LifeCycle {
    /// Loads and attaches. From then on every first mapping of an anonymous page on the machine costs a look at whose it is.
    ///
    /// # Errors
    /// When the kernel lacks a function, or takes no programs at its functions. The text says which.
    pub fn open() -> Result<LifeCycle, BpfError> {
        if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(BpfError::NoBtf);
        }
        let kernel = Btf::from_vmlinux().map_err(|error| BpfError::NotAttached(format!("{error:#}")))?;
        let chosen = choose(
            |function| kernel.type_by_name::<Func<'_>>(function).is_some(),
            kernel.type_by_name::<Struct<'_>>("unmap_desc").is_some(),
        )?;
        LifeCycle::load(&chosen).map_err(|error| match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => BpfError::FunctionsRefused(format!("{error:#}")),
            _ => BpfError::NotAttached(format!("{error:#}")),
        })
    }

    /// The kernel's functions that are attached to.
    pub fn functions(&self) -> &[&'static str] {
        &self.functions
    }

    /// Tells of this process from now on.
    ///
    /// # Errors
    /// When the kernel's table is full.
    pub fn watch(&self, pid: u32) -> Result<(), BpfError> {
        let watched = self.managed.update(&pid.to_ne_bytes(), &[1], MapFlags::ANY);
        watched.map_err(|error| BpfError::NotAttached(format!("pid {pid} cannot be watched: {error:#}")))
    }

    /// Tells of this process no more.
    pub fn forget(&self, pid: u32) {
        // One that was not watched is not watched afterwards either.
        if let Err(error) = self.managed.delete(&pid.to_ne_bytes()) {
            tracing::debug!(pid, "was not watched: {error:#}");
        }
    }

    /// Moves what happened since the last call to the end of `into`, in the order it happened.
    ///
    /// # Errors
    /// When the ring cannot be read.
    pub fn drain(&mut self, into: &mut Vec<LifeEvent>) -> Result<(), BpfError> {
        let read = self.ring.consume();
        into.append(&mut self.told.borrow_mut());
        read.map_err(|error| BpfError::NotAttached(format!("the ring of births and deaths: {error:#}")))
    }

    /// Events that found no room in the ring.
    pub fn lost(&self) -> u64 {
        let count = self.lost.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        count.and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?))).unwrap_or(0)
    }

    /// Becomes readable when many events wait; a few wait until somebody looks.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns this descriptor and lives as long as the borrow.
        #[allow(unsafe_code)]
        unsafe {
            BorrowedFd::borrow_raw(self.ring.epoll_fd())
        }
    }

    fn load(chosen: &BTreeMap<&'static str, &'static str>) -> libbpf_rs::Result<LifeCycle> {
        libbpf_rs::set_print(Some((PrintLevel::Info, |_, text| tracing::debug!("libbpf: {}", text.trim_end()))));
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        for mut program in open.progs_mut() {
            let wanted =
                program.name() == NOTE || program.name().to_str().is_some_and(|name| chosen.contains_key(name));
            program.set_autoload(wanted);
        }
        let object = open.load()?;
        let note = object.progs().find(|program| program.name() == NOTE).ok_or_else(crate::loader::missing)?;
        crate::loader::call_program(note.as_fd()).map_err(|error| match error {
            BpfError::Call { source, .. } => libbpf_rs::Error::from(source),
            other => std::io::Error::other(other.to_string()).into(),
        })?;
        let mut links = Vec::new();
        for program in object.progs_mut() {
            if program.name().to_str().is_some_and(|name| chosen.contains_key(name)) {
                links.push(program.attach()?);
            }
        }
        let map = |name: &str| -> libbpf_rs::Result<MapHandle> {
            let found = object.maps().find(|map| map.name() == name);
            MapHandle::try_from(&found.ok_or_else(crate::loader::missing)?)
        };
        let told = Rc::new(RefCell::new(Vec::new()));
        let events = map("events")?;
        let mut ring = RingBufferBuilder::new();
        let into = Rc::clone(&told);
        ring.add(&events, move |bytes| {
            into.borrow_mut().extend(decode(bytes));
            0
        })?;
        let ring = ring.build()?;
        Ok(LifeCycle {
            functions: chosen.values().copied().collect(),
            told,
            ring,
            managed: map("managed")?,
            lost: map("lost")?,
            _links: links,
            _object: object,
        })
    }
}

/// Which programs to load for a kernel that has the functions `has`: program to function.
fn choose(has: impl Fn(&str) -> bool, by_description: bool) -> Result<BTreeMap<&'static str, &'static str>, BpfError> {
    let none = |what: &'static str, of: &[(&str, &str)]| BpfError::NoFunction {
        what,
        names: of.iter().map(|(function, _)| *function).collect::<Vec<_>>().join(", "),
    };
    let birth = BIRTHS.into_iter().find(|(function, _)| has(function)).ok_or_else(|| none("births", &BIRTHS))?;
    let zaps: Vec<_> = ZAPS.into_iter().filter(|(function, _)| has(function)).collect();
    if zaps.is_empty() {
        return Err(none("deaths by madvise", &ZAPS));
    }
    let unmap = (UNMAP, if by_description { "unmapped_by_description" } else { "unmapped" });
    if !has(UNMAP) {
        return Err(none("deaths by munmap", &[unmap]));
    }
    Ok([birth, unmap].into_iter().chain(zaps).map(|(function, program)| (program, function)).collect())
}

/// One record of the ring; `None` if it is none of ours.
fn decode(bytes: &[u8]) -> Option<LifeEvent> {
    let bytes: &[u8; EVENT_BYTES] = bytes.try_into().ok()?;
    let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let short = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let kind = match short(20) {
        0 => LifeKind::Allocated,
        1 => LifeKind::Freed,
        _ => return None,
    };
    Some(LifeEvent { pid: short(16), kind, first: long(0), pages: long(8) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_gets_the_programs_of_its_functions() {
        let check = |has: &[&str], by_description: bool, wanted: &[&str]| {
            let chosen = choose(|function| has.contains(&function), by_description).unwrap();
            assert_eq!(chosen.into_keys().collect::<Vec<_>>(), wanted, "{has:?}");
        };
        // What BTF of Debian's 6.1.0-56, 6.12.117 and 7.2.13 has.
        let old = ["page_add_new_anon_rmap", "unmap_vmas", "zap_page_range", "zap_page_range_single"];
        check(&old, false, &["born_page", "unmapped", "zapped_old", "zapped_single"]);
        let middle = ["folio_add_new_anon_rmap", "unmap_vmas", "zap_page_range_single"];
        check(&middle, false, &["born_folio", "unmapped", "zapped_single"]);
        let new = ["folio_add_new_anon_rmap", "unmap_vmas", "zap_vma_range", "zap_vma_range_batched"];
        check(&new, true, &["born_folio", "unmapped_by_description", "zapped_area", "zapped_area_batched"]);
    }

    #[test]
    fn a_kernel_without_a_function_is_told_which_is_missing() {
        let says = |has: &[&str], what: &str| {
            let error = choose(|function| has.contains(&function), false).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        says(&[], "births: folio_add_new_anon_rmap, page_add_new_anon_rmap");
        says(&["folio_add_new_anon_rmap", "unmap_vmas"], "deaths by madvise: zap_vma_range");
        says(&["folio_add_new_anon_rmap", "zap_page_range"], "deaths by munmap: unmap_vmas");
    }

    #[test]
    fn records_are_decoded_and_others_are_not() {
        let mut bytes = Vec::new();
        bytes.extend(0x7f00_1234u64.to_ne_bytes());
        bytes.extend(16u64.to_ne_bytes());
        bytes.extend(77u32.to_ne_bytes());
        bytes.extend(1u32.to_ne_bytes());
        assert_eq!(decode(&bytes), Some(LifeEvent { pid: 77, kind: LifeKind::Freed, first: 0x7f00_1234, pages: 16 }));
        bytes[20] = 2;
        assert_eq!(decode(&bytes), None);
        assert_eq!(decode(&bytes[..23]), None);
    }
}
