//! QEMU's plugin interface, version 1, declared by hand.
//!
//! In: nothing. Out: the functions that QEMU offers its plugins. Must not: declare more than is used. Debian ships no header.
//!
//! QEMU compares the number that the plugin exports with the numbers it speaks, and refuses it with both numbers otherwise.
//! Version 1 is spoken by QEMU 6.0 to 8.2; Debian bookworm's 7.2 speaks 0 to 1. Later ones are not: 10.0 (bookworm-backports, trixie)
//! speaks 2 to 4, and 11.1 (unstable) only 7, whose callbacks have other arguments.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The interface that this plugin is written for.
pub(crate) const VERSION: c_int = 1;

/// `qemu_plugin_id_t`.
pub(crate) type PluginId = u64;
/// `qemu_plugin_meminfo_t`: size, sign, byte order and direction of an access, to be asked by functions.
pub(crate) type MemoryInfo = u32;

/// `qemu_info_t`, of which the part is declared that is read.
#[repr(C)]
pub(crate) struct Info {
    pub(crate) target_name: *const c_char,
    pub(crate) least_version: c_int,
    pub(crate) version: c_int,
    pub(crate) is_system: bool,
}

/// A block of translated instructions.
#[repr(C)]
pub(crate) struct Block {
    _private: [u8; 0],
}

/// An instruction of a block.
#[repr(C)]
pub(crate) struct Instruction {
    _private: [u8; 0],
}

/// What lies behind a virtual address. Valid during the callback that asked for it.
#[repr(C)]
pub(crate) struct HardwareAddress {
    _private: [u8; 0],
}

/// `QEMU_PLUGIN_CB_NO_REGS`: the callback reads no registers.
pub(crate) const NO_REGISTERS: c_uint = 0;
/// `QEMU_PLUGIN_MEM_RW`: reads and writes.
pub(crate) const READS_AND_WRITES: c_uint = 3;

pub(crate) type OnTranslation = extern "C" fn(PluginId, *mut Block);
pub(crate) type OnAccess = extern "C" fn(c_uint, MemoryInfo, u64, *mut c_void);
pub(crate) type OnBlock = extern "C" fn(c_uint, *mut c_void);
/// Number and eight arguments of a system call, in user mode.
pub(crate) type OnSystemCall = extern "C" fn(PluginId, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
pub(crate) type OnExit = extern "C" fn(PluginId, *mut c_void);

unsafe extern "C" {
    pub(crate) fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, callback: OnTranslation);
    pub(crate) fn qemu_plugin_register_vcpu_syscall_cb(id: PluginId, callback: OnSystemCall);
    pub(crate) fn qemu_plugin_register_atexit_cb(id: PluginId, callback: OnExit, data: *mut c_void);
    pub(crate) fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    pub(crate) fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    pub(crate) fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    pub(crate) fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        callback: OnAccess,
        registers: c_uint,
        direction: c_uint,
        data: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut Block,
        callback: OnBlock,
        registers: c_uint,
        data: *mut c_void,
    );
    pub(crate) fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const c_void;
    pub(crate) fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    pub(crate) fn qemu_plugin_mem_is_store(info: MemoryInfo) -> bool;
    pub(crate) fn qemu_plugin_mem_size_shift(info: MemoryInfo) -> c_uint;
    pub(crate) fn qemu_plugin_get_hwaddr(info: MemoryInfo, address: u64) -> *mut HardwareAddress;
    pub(crate) fn qemu_plugin_hwaddr_is_io(address: *const HardwareAddress) -> bool;
    pub(crate) fn qemu_plugin_hwaddr_phys_addr(address: *const HardwareAddress) -> u64;
}
