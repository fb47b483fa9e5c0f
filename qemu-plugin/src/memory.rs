//! A guest's physical memory, and what its kernel and its page tables say in it.
//!
//! In: the files that QEMU was given as the guest's memory, a [`Layout`] of the kernel's structures. Out: who a task is, and how large the
//! page behind an address is. Must not: write, or call into QEMU.
//!
//! The files are read with system calls and not mapped: QEMU maps them, and the host's kernel keeps both views one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::options::ProgramOptions;

/// Where x86-64 kernels that do not randomise their own addresses (nokaslr) map all physical memory
/// (Documentation/arch/x86/x86_64/mm.rst, four levels).
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// Of an entry of a page table: it leads on, it maps a page itself, the frame (Intel's manual, volume 3A, 4.5).
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
const FRAME: u64 = 0x000f_ffff_ffff_f000;
/// PF_FORKNOEXEC: forked, and has not begun a program of its own.
const FORKED_ONLY: u64 = 0x40;

/// Byte offsets in the guest kernel's structures, as its own type information has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// `flags` of `task_struct`.
    pub(crate) task_flags: u64,
    /// `mm`.
    pub(crate) task_mm: u64,
    /// `pid`, which is a thread's number.
    pub(crate) task_pid: u64,
    /// `tgid`, which is a process's.
    pub(crate) task_tgid: u64,
    /// `comm`.
    pub(crate) task_comm: u64,
    /// `loginuid`: goes from a process to its children, whatever they run.
    pub(crate) task_loginuid: u64,
    /// `pgd` of `mm_struct`.
    pub(crate) mm_pgd: u64,
}

/// Who runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Number of the thread.
    pub(crate) thread: u64,
    /// Number of the process.
    pub(crate) process: u64,
    /// Name of the program.
    pub(crate) name: String,
    /// On whose behalf: `loginuid`.
    pub(crate) label: u64,
    /// It was forked and runs its parent's program still.
    pub(crate) forked_only: bool,
}

/// The memory.
pub(crate) struct GuestMemory {
    /// Each node's, in order of physical addresses, with its size.
    nodes: Vec<(File, u64)>,
    layout: Layout,
}

impl GuestMemory {
    /// Opens it.
    ///
    /// # Errors
    /// When a file cannot be opened.
    pub(crate) fn open(files: &[PathBuf], layout: Layout) -> io::Result<GuestMemory> {
        let open = |path: &PathBuf| {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        };
        Ok(GuestMemory { nodes: files.iter().map(open).collect::<io::Result<_>>()?, layout })
    }

    /// That of a guest whose programs are distinguished.
    ///
    /// # Errors
    /// With what cannot be opened, and why.
    pub(crate) fn of(programs: &ProgramOptions) -> Result<GuestMemory, String> {
        GuestMemory::open(&programs.memory, programs.layout)
            .map_err(|error| format!("the guest's memory {:?}: {error}", programs.memory))
    }

    fn read(&self, physical: u64, into: &mut [u8]) -> Option<()> {
        let mut at = physical;
        for (file, bytes) in &self.nodes {
            if at < *bytes {
                return file.read_exact_at(into, at).ok();
            }
            at -= bytes;
        }
        None
    }

    fn word(&self, physical: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(physical, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// A word of a structure that the kernel has in memory which it maps directly.
    fn field(&self, structure: u64, offset: u64) -> Option<u64> {
        self.word((structure + offset).checked_sub(DIRECT_MAP)?)
    }

    /// The address space of a task: 0 for one that has ended, and for the kernel's own.
    pub(crate) fn space(&self, task: u64) -> Option<u64> {
        self.field(task, self.layout.task_mm)
    }

    /// Physical address of an address space's top page table.
    pub(crate) fn tables(&self, space: u64) -> Option<u64> {
        self.field(space, self.layout.mm_pgd)?.checked_sub(DIRECT_MAP)
    }

    /// Who a task is.
    pub(crate) fn identity(&self, task: u64) -> Option<Identity> {
        let number = |offset: u64| Some(self.field(task, offset)? & u64::from(u32::MAX));
        let mut name = [0; 16];
        self.read((task + self.layout.task_comm).checked_sub(DIRECT_MAP)?, &mut name)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Some(Identity {
            thread: number(self.layout.task_pid)?,
            process: number(self.layout.task_tgid)?,
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
            label: number(self.layout.task_loginuid)?,
            forked_only: number(self.layout.task_flags)? & FORKED_ONLY != 0,
        })
    }

    /// Whether an entry of 2 MiB or more maps an address; `None` where nothing maps it.
    pub(crate) fn is_huge(&self, tables: u64, address: u64) -> Option<bool> {
        let mut table = tables;
        for shift in [39, 30, 21] {
            let entry = self.word(table + (address >> shift & 511) * 8)?;
            if entry & PRESENT == 0 {
                return None;
            }
            // The top level maps no pages itself.
            if shift < 39 && entry & LARGE != 0 {
                return Some(true);
            }
            table = entry & FRAME;
        }
        Some(false)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const LAYOUT: Layout = Layout {
        task_flags: 8,
        task_mm: 16,
        task_pid: 24,
        task_tgid: 28,
        task_comm: 32,
        task_loginuid: 48,
        mm_pgd: 64,
    };

    /// A guest's memory in two files of 64 KiB, to be written.
    pub(crate) struct Made {
        pub(crate) files: Vec<PathBuf>,
    }

    impl Made {
        pub(crate) fn new(name: &str) -> Made {
            let path =
                |node: u32| std::env::temp_dir().join(format!("terrace-memory-{}-{name}-{node}", std::process::id()));
            let files = vec![path(0), path(1)];
            files.iter().for_each(|path| File::create(path).unwrap().set_len(1 << 16).unwrap());
            Made { files }
        }

        pub(crate) fn put(&self, physical: u64, bytes: &[u8]) {
            let file = File::options().write(true).open(&self.files[(physical >> 16) as usize]).unwrap();
            file.write_all_at(bytes, physical & 0xffff).unwrap();
        }

        /// A task and its address space at these physical addresses; returns the task's address in the kernel.
        pub(crate) fn task(&self, at: u64, mm: u64, pids: (u32, u32), label: u32, flags: u32) -> u64 {
            self.put(at + LAYOUT.task_flags, &flags.to_le_bytes());
            let space = if mm == 0 { 0 } else { DIRECT_MAP + mm };
            self.put(at + LAYOUT.task_mm, &space.to_le_bytes());
            self.put(at + LAYOUT.task_pid, &[pids.0.to_le_bytes(), pids.1.to_le_bytes()].concat());
            self.put(at + LAYOUT.task_comm, b"program\0");
            self.put(at + LAYOUT.task_loginuid, &label.to_le_bytes());
            DIRECT_MAP + at
        }

        pub(crate) fn space(&self, at: u64, tables: u64) {
            self.put(at + LAYOUT.mm_pgd, &(DIRECT_MAP + tables).to_le_bytes());
        }

        /// Maps 2 MiB: one entry, or a table of them.
        pub(crate) fn map(&self, tables: u64, address: u64, huge: bool) {
            let entry = |table: u64, shift: u32| table + (address >> shift & 511) * 8;
            self.put(entry(tables, 39), &((tables + 0x1000) | 0x67).to_le_bytes());
            self.put(entry(tables + 0x1000, 30), &((tables + 0x2000) | 0x67).to_le_bytes());
            let leaf: u64 = if huge { 0x4000_0000 | 0xe7 } else { 0x8000 | 0x67 };
            self.put(entry(tables + 0x2000, 21), &leaf.to_le_bytes());
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            self.files.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        }
    }

    #[test]
    fn a_task_is_read_from_the_kernel_s_structures_on_any_node() {
        let made = Made::new("task");
        let memory = GuestMemory::open(&made.files, LAYOUT).unwrap();
        let task = made.task(0x1_1000, 0x2000, (78, 77), 9, 0x40);
        made.space(0x2000, 0x4000);
        let space = memory.space(task).unwrap();
        assert_eq!((space, memory.tables(space)), (DIRECT_MAP + 0x2000, Some(0x4000)));
        let expected = Identity { thread: 78, process: 77, name: "program".to_owned(), label: 9, forked_only: true };
        assert_eq!(memory.identity(task), Some(expected));
        assert_eq!(memory.identity(0xffff_ffff_8260_0000), None, "the idle task is not in that map");
        assert_eq!(memory.identity(DIRECT_MAP + 0x2_0000), None, "beyond the last node");
    }

    #[test]
    fn an_entry_of_two_megabytes_or_a_gigabyte_is_huge_and_none_is_told() {
        let made = Made::new("walk");
        let memory = GuestMemory::open(&made.files, LAYOUT).unwrap();
        made.map(0x4000, 0x7f00_0020_0000, true);
        made.map(0x4000, 0x7f00_0040_0000, false);
        assert_eq!(memory.is_huge(0x4000, 0x7f00_0020_1234), Some(true));
        assert_eq!(memory.is_huge(0x4000, 0x7f00_0040_1234), Some(false));
        assert_eq!(memory.is_huge(0x4000, 0x7f00_0060_0000), None);
        assert_eq!(memory.is_huge(0x4000, 0x1000), None);
        made.put(0x5000 + 8, &(0x4000_0000_u64 | 0xe7).to_le_bytes());
        assert_eq!(memory.is_huge(0x4000, 0x7f00_4000_0000), Some(true), "by a gigabyte");
    }
}
