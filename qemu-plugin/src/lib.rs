//! The plugin: QEMU loads it, and from then on it sees every access to memory.
//!
//! In: QEMU's callbacks, and arguments (`options`). Out: a recording of a program (user mode, `record`, `started`) or of programs in a guest
//! (system mode, `guest`, `memory`), or counts by memory tier of a guest or of programs in it and samples for it (system mode, `tiers`, `whose`, `samples`).
//! Must not: change what is emulated.
//!
//! A program is recorded by `terrace record`, one in a guest by `terrace lab record`, a guest counted by `terrace lab compare`; all start
//! QEMU with this file.
// A test has no QEMU to call, so it is built without the callbacks, and what only they use is idle in it.
#![cfg_attr(test, allow(clippy::unwrap_used, dead_code))]

#[cfg(not(test))]
mod api;
#[path = "../../crates/linux/src/trackers/emulated_ring.rs"]
mod emulated_ring;
mod guest;
mod memory;
mod options;
mod record;
mod samples;
mod started;
mod stream;
mod tiers;
mod whose;

#[cfg(not(test))]
mod glue {
    //! Between QEMU's callbacks and the modules that do the work.
    //!
    //! In: callbacks. Out: calls of `record`, `guest` and `tiers`. Must not: hold logic.

    use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
    use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

    use crate::api::{self, Block, Info, MemoryInfo, PluginId};
    use crate::guest::{self, GuestRecording, switched_stack};
    use crate::options::Options;
    use crate::record::{Cpu, Recording};
    use crate::started::Started;
    use crate::tiers::{BeginError, Tiers};

    /// Virtual CPUs at most: in user mode each thread is one.
    const CPUS: usize = 1024;
    /// Where the kernel's half of the addresses begins (x86-64 with four levels): its code is not watched.
    const USER_END: u64 = 1 << 47;

    /// What the plugin does in this process.
    enum Work {
        Record { recording: Recording, started: Option<Started>, cpus: Vec<Mutex<Option<Box<Cpu>>>> },
        Guest { recording: Box<GuestRecording>, cpus: Vec<Mutex<Option<Box<guest::Cpu>>>> },
        Tiers { tiers: Box<Mutex<Tiers>>, tells_programs: bool },
    }

    static WORK: OnceLock<Work> = OnceLock::new();

    /// The version of the interface; QEMU reads it before anything else.
    #[unsafe(no_mangle)]
    pub static qemu_plugin_version: c_int = api::VERSION;

    /// QEMU's entry.
    ///
    /// # Safety
    /// To be called by QEMU only: `info` and the `count` texts of `arguments` must be valid.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn qemu_plugin_install(
        id: PluginId,
        info: *const Info,
        count: c_int,
        arguments: *const *const c_char,
    ) -> c_int {
        // SAFETY: QEMU passes a valid description that lives through this call.
        let info = unsafe { &*info };
        let arguments: Vec<String> = (0..usize::try_from(count).unwrap_or(0))
            // SAFETY: there are `count` texts, each ended by a zero.
            .map(|index| unsafe { CStr::from_ptr(*arguments.add(index)) }.to_string_lossy().into_owned())
            .collect();
        match begin(info, &arguments) {
            Ok(work) => {
                if WORK.set(work).is_err() {
                    return fail("it is loaded twice");
                }
                // SAFETY: `id` is ours, and the functions have the types that version 1 calls.
                unsafe {
                    api::qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
                    if matches!(WORK.get(), Some(Work::Record { started: Some(_), .. })) {
                        api::qemu_plugin_register_vcpu_syscall_cb(id, on_system_call);
                    }
                    api::qemu_plugin_register_atexit_cb(id, on_exit, std::ptr::null_mut());
                }
                0
            }
            Err(why) => fail(&why),
        }
    }

    fn fail(why: &str) -> c_int {
        eprintln!("terrace-qemu-plugin: {why}");
        1
    }

    fn begin(info: &Info, arguments: &[String]) -> Result<Work, String> {
        // QEMU refuses what it does not speak; this names what was found if that should ever fail.
        if info.least_version > api::VERSION || info.version < api::VERSION {
            let (least, most) = (info.least_version, info.version);
            return Err(format!("this QEMU speaks plugin interface {least} to {most}, not {}", api::VERSION));
        }
        match (Options::parse(arguments)?, info.is_system) {
            (Options::Record(options), false) => {
                let recording =
                    Recording::begin(&options).map_err(|error| format!("{}: {error}", options.output.display()))?;
                let started = options.started.map(Started::new);
                Ok(Work::Record { recording, started, cpus: (0..CPUS).map(|_| Mutex::new(None)).collect() })
            }
            (Options::Guest(options), true) => {
                let recording = Box::new(GuestRecording::begin(options, CPUS)?);
                Ok(Work::Guest { recording, cpus: (0..CPUS).map(|_| Mutex::new(None)).collect() })
            }
            (Options::Tiers(options), true) => {
                let output = options.output.display().to_string();
                let samples = options.samples.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
                let tiers = Tiers::begin(options).map_err(|error| match error {
                    BeginError::Output(error) => format!("{output}: {error}"),
                    BeginError::Samples(error) => format!("{samples}: {error}"),
                    BeginError::Machine(error) => error.to_string(),
                    BeginError::OneTier => "the machine has one tier: expected two".to_owned(),
                    BeginError::Memory(error) => error,
                })?;
                Ok(Work::Tiers { tells_programs: tiers.tells_programs(), tiers: Box::new(Mutex::new(tiers)) })
            }
            (Options::Record(_), true) => Err("mode=record is for programs (qemu-x86_64)".to_owned()),
            (Options::Guest(_), false) => Err("mode=guest is for guests (qemu-system-x86_64)".to_owned()),
            (Options::Tiers(_), false) => Err("mode=tiers is for guests (qemu-system-x86_64)".to_owned()),
        }
    }

    fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    extern "C" fn on_translation(_: PluginId, block: *mut Block) {
        // SAFETY: the block is valid during this callback; indices stay below its count.
        unsafe {
            let kernel = api::qemu_plugin_tb_vaddr(block) >= USER_END;
            if matches!(WORK.get(), Some(Work::Guest { .. } | Work::Tiers { tells_programs: true, .. })) {
                let data = api::qemu_plugin_tb_n_insns(block) << 1 | usize::from(kernel);
                let data = std::ptr::without_provenance_mut(data);
                api::qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, api::NO_REGISTERS, data);
                if kernel {
                    watch_switches(block);
                }
            }
            if kernel {
                return;
            }
            for index in 0..api::qemu_plugin_tb_n_insns(block) {
                let instruction = api::qemu_plugin_tb_get_insn(block, index);
                api::qemu_plugin_register_vcpu_mem_cb(
                    instruction,
                    on_access,
                    api::NO_REGISTERS,
                    api::READS_AND_WRITES,
                    std::ptr::null_mut(),
                );
            }
        }
    }

    /// # Safety
    /// To be called during the translation of the block.
    unsafe fn watch_switches(block: *mut Block) {
        // SAFETY: indices stay below the count, and an instruction has as many bytes as it says.
        unsafe {
            for index in 0..api::qemu_plugin_tb_n_insns(block) {
                let instruction = api::qemu_plugin_tb_get_insn(block, index);
                let bytes = api::qemu_plugin_insn_data(instruction).cast::<u8>();
                let bytes = std::slice::from_raw_parts(bytes, api::qemu_plugin_insn_size(instruction));
                if let Some(offset) = switched_stack(bytes) {
                    let offset = std::ptr::without_provenance_mut(offset as usize);
                    // Loads alone are not to be had: QEMU 7.2 takes `QEMU_PLUGIN_MEM_R` for stores.
                    let (registers, any) = (api::NO_REGISTERS, api::READS_AND_WRITES);
                    api::qemu_plugin_register_vcpu_mem_cb(instruction, on_switch, registers, any, offset);
                }
            }
        }
    }

    extern "C" fn on_block(cpu: c_uint, data: *mut c_void) {
        let data = data.addr();
        match WORK.get() {
            Some(Work::Guest { recording, .. }) => recording.block(cpu as usize, (data >> 1) as u64, data & 1 != 0),
            Some(Work::Tiers { tiers, .. }) => {
                if let Some(whose) = locked(tiers).watched() {
                    whose.block(data & 1 != 0);
                }
            }
            _ => {}
        }
    }

    extern "C" fn on_switch(cpu: c_uint, _: MemoryInfo, address: u64, offset: *mut c_void) {
        let task = address.wrapping_sub(offset.addr() as u64);
        match WORK.get() {
            Some(Work::Guest { recording, cpus }) => {
                let Some(slot) = cpus.get(cpu as usize) else { return };
                let mut slot = locked(slot);
                let state = slot.get_or_insert_with(|| Box::new(recording.cpu()));
                recording.switch(cpu as usize, state, task);
            }
            Some(Work::Tiers { tiers, .. }) => {
                if let Some(whose) = locked(tiers).watched() {
                    whose.switch(task);
                }
            }
            _ => {}
        }
    }

    extern "C" fn on_access(cpu: c_uint, info: MemoryInfo, address: u64, _: *mut c_void) {
        match WORK.get() {
            Some(Work::Record { recording, cpus, .. }) => {
                let Some(slot) = cpus.get(cpu as usize) else { return };
                let mut slot = locked(slot);
                let state = slot.get_or_insert_with(|| Box::new(recording.cpu(u64::from(cpu))));
                // SAFETY: `info` is that of this callback.
                let (size, write) =
                    unsafe { (api::qemu_plugin_mem_size_shift(info), api::qemu_plugin_mem_is_store(info)) };
                recording.access(state, address, size, write);
            }
            Some(Work::Guest { recording, cpus }) => {
                let Some(slot) = cpus.get(cpu as usize) else { return };
                let mut slot = locked(slot);
                let state = slot.get_or_insert_with(|| Box::new(recording.cpu()));
                // SAFETY: `info` is that of this callback.
                let (size, write) =
                    unsafe { (api::qemu_plugin_mem_size_shift(info), api::qemu_plugin_mem_is_store(info)) };
                recording.access(cpu as usize, state, address, size, write);
            }
            Some(Work::Tiers { tiers, .. }) => {
                let mut tiers = locked(tiers);
                let Some(of) = tiers.wants(address) else { return };
                // SAFETY: asked during the access's own callback, where both are valid.
                unsafe {
                    let hardware = api::qemu_plugin_get_hwaddr(info, address);
                    if hardware.is_null() || api::qemu_plugin_hwaddr_is_io(hardware) {
                        return;
                    }
                    let physical = api::qemu_plugin_hwaddr_phys_addr(hardware);
                    tiers.access(of, address, physical, api::qemu_plugin_mem_is_store(info));
                }
            }
            None => {}
        }
    }

    extern "C" fn on_system_call(
        _: PluginId,
        _: c_uint,
        number: i64,
        first: u64,
        second: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
    ) {
        if let Some(Work::Record { started: Some(started), .. }) = WORK.get() {
            started.system_call(number, [first, second]);
        }
    }

    extern "C" fn on_exit(_: PluginId, _: *mut c_void) {
        match WORK.get() {
            Some(Work::Record { recording, cpus, .. }) => {
                for slot in cpus {
                    if let Some(cpu) = locked(slot).as_mut() {
                        recording.flush(cpu);
                    }
                }
                // In user mode guest addresses are host addresses (but for a base of 0), so this process's own list is right.
                recording.maps(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default());
            }
            Some(Work::Guest { recording, cpus }) => {
                for slot in cpus {
                    if let Some(cpu) = locked(slot).as_mut() {
                        recording.flush(cpu);
                    }
                }
            }
            Some(Work::Tiers { tiers, .. }) => locked(tiers).end_stretch(),
            None => {}
        }
    }
}
