//! Both programs on this kernel, against what the kernel itself says of this process in /proc/self/pagemap.
#![cfg(feature = "bpf")]
// The output of the tests lists skipped tests.
#![allow(clippy::print_stdout)]

use std::io::{Read, Seek, SeekFrom};

use terrace_bpf::{BpfError, PageTables, TABLE_ENTRIES, Variant};

const BLOCK: usize = 2 << 20;
const BLOCKS: usize = 4;

fn opened(variant: Variant) -> Option<PageTables> {
    match PageTables::open_variant(variant, BLOCKS) {
        Ok(tables) => Some(tables),
        // Root on a kernel that is new enough has no excuse.
        Err(error) if is_root() && kernel_at_least(since(variant)) && !(variant == Variant::ByPid && own_pids()) => {
            panic!("{variant:?}: {error}")
        }
        Err(error) => {
            println!("SKIPPED {variant:?}: {error}");
            None
        }
    }
}

fn since(variant: Variant) -> (u32, u32) {
    match variant {
        Variant::ByOwnPid => (6, 13),
        Variant::ByPid => (6, 10),
        Variant::ByIterator => (6, 1),
    }
}

/// Whether pids here are others than those of the whole machine (PROC_PID_INIT_INO of linux/proc_ns.h).
fn own_pids() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() != "pid:[4026531836]")
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("CapEff");
    // CAP_SYS_ADMIN is bit 21.
    u64::from_str_radix(capabilities.trim(), 16).expect("hexadecimal") & (1 << 21) != 0
}

fn kernel_at_least(wanted: (u32, u32)) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("osrelease");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= wanted
}

fn agrees_with_pagemap(variant: Variant) {
    let Some(mut tables) = opened(variant) else { return };
    let mut memory = memmap2::MmapMut::map_anon((BLOCKS + 1) * BLOCK).expect("memory");
    let _ = memory.advise(memmap2::Advice::NoHugePage);
    let start = (memory.as_ptr() as usize).next_multiple_of(BLOCK);
    let skip = start - memory.as_ptr() as usize;
    // Every third page of the first two blocks; the third block untouched; all of the fourth.
    for page in (0..2 * TABLE_ENTRIES).step_by(3).chain(3 * TABLE_ENTRIES..4 * TABLE_ENTRIES) {
        memory[skip + page * 4096] = 1;
    }
    let blocks: Vec<u64> = (0..BLOCKS).map(|block| (start + block * BLOCK) as u64).collect();
    let mark = tables.copy(std::process::id(), &blocks).expect("copy");
    let mut pagemap = std::fs::File::open("/proc/self/pagemap").expect("pagemap");
    let mut entries = vec![0u8; BLOCKS * TABLE_ENTRIES * 8];
    pagemap.seek(SeekFrom::Start(start as u64 / 4096 * 8)).expect("seek");
    pagemap.read_exact(&mut entries).expect("read");
    let mut present = 0;
    for (page, entry) in entries.chunks_exact(8).enumerate() {
        let told = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
        let head = tables.head(page / TABLE_ENTRIES);
        let seen = if head & 1 == 1 { tables.table(page / TABLE_ENTRIES)[page % TABLE_ENTRIES] } else { 0 };
        assert_eq!(seen & 1, told >> 63, "page {page}: entry {seen:#x}, pagemap {told:#x}");
        if seen & 1 == 1 {
            present += 1;
            let frame = (seen & tables.physical_address_mask()) >> 12;
            assert_eq!(frame, told & ((1 << 55) - 1), "page {page}");
        }
    }
    assert_eq!(present, (2 * TABLE_ENTRIES).div_ceil(3) + TABLE_ENTRIES);
    assert_eq!(tables.head(2), 0, "an untouched block has no table");
    assert_eq!(tables.copy(std::process::id(), &blocks[..1]).expect("again"), mark, "the same address space");
    // Kernel threads have no memory; pids above the kernel's largest name nobody.
    if !own_pids() {
        assert!(matches!(tables.copy(2, &blocks), Err(BpfError::Gone(2))), "kthreadd has no page tables");
    }
    assert!(matches!(tables.copy(1 << 23, &blocks), Err(BpfError::Gone(_))));
}

#[test]
fn the_program_by_own_pid_agrees_with_pagemap() {
    agrees_with_pagemap(Variant::ByOwnPid);
}

#[test]
fn the_program_by_pid_agrees_with_pagemap() {
    agrees_with_pagemap(Variant::ByPid);
}

#[test]
fn the_program_by_iterator_agrees_with_pagemap() {
    agrees_with_pagemap(Variant::ByIterator);
}
