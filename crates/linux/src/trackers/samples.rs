//! `samples`: addresses of loads and stores, sampled by the processor.
//!
//! In: the targets. Out: [`Event::Sampled`]. Must not: take more of a CPU than its quota, or run where the processor
//! shows nothing. Intel's PEBS samples loads that missed the last-level cache and retired stores; AMD's IBS and Arm's SPE
//! sample any operation, and samples that are neither loads that missed nor stores are discarded.
//!
//! In a guest of the lab, whose processor has no such hardware, the emulator delivers them ([`emulated`]).
//!
//! PEBS and IBS events are opened for the whole machine on each CPU and separated by process if rights allow it
//! (it costs other programs little, as samples are rare), else for the targets' tasks. SPE has its own trace buffer, one for
//! each thread, since its records do not say which process they are of.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use perf_event_open_sys::bindings::{self as perf, perf_event_attr};
use terrace_core::observation::Access;
use terrace_core::policy::SamplePeriods;
use terrace_core::units::{Time, Vpn};

use super::emulated::{self, EmulatedSamples};
use super::page_faults::{contains, space_of};
use super::sample_period::PeriodControl;
use super::{Event, ProofKind, Round, Sink, Target, TrackError, Tracker};
use crate::perf::group::{EventGroup, Scope};
use crate::perf::record::{Layout, Record, Sample};
use crate::perf::ring::{Ring, RingCounts};
use crate::perf::spe;
use crate::rights::Rights;
use crate::sys;
use crate::usage::thread_cpu;

const NAME: &str = "samples";
/// 128 KiB a CPU, as MEMTIS maps for each event.
const RING_PAGES: usize = 32;
/// Trace buffer of one thread under SPE.
const SPE_PAGES: usize = 64;
const DEVICES: &str = "/sys/bus/event_source/devices";

/// What an event of the processor counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Loads,
    Stores,
    /// Any operation; the sample says what it was.
    Operations,
}

/// Intel's events (event code with unit mask): loads that were served by local memory, persistent memory and remote memory,
/// and all retired stores. MEMTIS, FlexMem and TieredMMS sample the same.
const INTEL_EVENTS: [(u64, Kind); 4] =
    [(0x01D3, Kind::Loads), (0x80D1, Kind::Loads), (0x02D3, Kind::Loads), (0x82D0, Kind::Stores)];

/// The tracker.
#[derive(Debug)]
pub struct Samples {
    source: Source,
    control: PeriodControl,
    vendor: &'static str,
}

#[derive(Debug)]
enum Source {
    Rings { group: EventGroup, kinds: Vec<Kind>, scope: Scope, events: Vec<perf_event_attr>, attached: BTreeSet<u32> },
    Spe(SpeThreads),
    Emulated(EmulatedSamples),
}

impl Samples {
    /// Finds out what the processor can do, by opening it.
    ///
    /// # Errors
    /// When there is no such hardware, or no right to it: why, in one line.
    pub fn open() -> Result<Samples, TrackError> {
        Samples::open_with_quota(PeriodControl::DEFAULT_QUOTA)
    }

    /// The same with a quota of CPU time, as a share of one CPU.
    ///
    /// # Errors
    /// As [`Samples::open`].
    pub fn open_with_quota(quota: f64) -> Result<Samples, TrackError> {
        let rights = Rights::of_this_process();
        let control = PeriodControl::new(quota);
        let devices = Path::new(DEVICES);
        let has_counters = ["cpu", "cpu_core"].iter().any(|device| devices.join(device).exists());
        let unavailable = |error: &io::Error| {
            let no_such_event = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL));
            let reason = if has_counters && no_such_event {
                format!("the processor has counters, but none that samples data addresses (PEBS, IBS or SPE): {error}")
            } else {
                rights.explain_perf(error)
            };
            TrackError::Unavailable { tracker: NAME, reason }
        };
        if let Some(ring) =
            EmulatedSamples::open(layout(), control.periods()).map_err(|error| TrackError::Unavailable {
                tracker: NAME,
                reason: format!("the lab's shared memory is there and cannot be used: {error}"),
            })?
        {
            return Ok(Samples { source: Source::Emulated(ring), control, vendor: "the lab's QEMU plugin" });
        }
        if devices.join("arm_spe_0").exists() {
            let threads = SpeThreads::open(devices, control.periods()).map_err(|error| unavailable(&error))?;
            return Ok(Samples { source: Source::Spe(threads), control, vendor: "Arm SPE" });
        }
        let (vendor, events, kinds) = match device_number(&devices.join("ibs_op/type")) {
            Some(device) => ("AMD IBS", vec![ibs_event(device, control.periods())], vec![Kind::Operations]),
            None => {
                let (events, kinds) = intel_events(devices, control.periods()).map_err(|error| unavailable(&error))?;
                ("Intel PEBS", events, kinds)
            }
        };
        let scope = if rights.may_watch_machine() { Scope::Machine } else { Scope::Tasks };
        let group = EventGroup::open(&events, layout(), scope, RING_PAGES).map_err(|error| unavailable(&error))?;
        let source = Source::Rings { group, kinds, scope, events, attached: BTreeSet::new() };
        Ok(Samples { source, control, vendor })
    }

    /// Whose sampling hardware this is.
    pub fn vendor(&self) -> &'static str {
        self.vendor
    }

    /// Accesses per sample now.
    pub fn periods(&self) -> SamplePeriods {
        self.control.periods()
    }

    /// What went missing.
    pub fn counts(&self) -> RingCounts {
        match &self.source {
            Source::Rings { group, .. } => group.counts(),
            Source::Spe(threads) => threads.counts,
            Source::Emulated(ring) => ring.counts(),
        }
    }

    fn apply(&mut self, periods: SamplePeriods) -> Result<(), TrackError> {
        let call = |source| TrackError::call(NAME, "ioctl(PERF_EVENT_IOC_PERIOD)", source);
        match &mut self.source {
            Source::Rings { group, kinds, scope: Scope::Machine, .. } => {
                for (index, kind) in kinds.iter().enumerate() {
                    group.set_period(index, period_of(*kind, periods)).map_err(call)?;
                }
            }
            // Inherited events keep their period, so all are opened again.
            Source::Rings { group, kinds, scope, events, attached } => {
                for (event, kind) in events.iter_mut().zip(kinds.iter()) {
                    event.__bindgen_anon_1.sample_period = period_of(*kind, periods);
                }
                *group = EventGroup::open(events, layout(), *scope, RING_PAGES).map_err(call)?;
                attached.clear();
            }
            Source::Spe(threads) => threads.set_period(periods),
            Source::Emulated(ring) => ring.set_periods(periods),
        }
        Ok(())
    }
}

impl Tracker for Samples {
    fn name(&self) -> &'static str {
        NAME
    }

    fn scan(&mut self, round: &Round<'_>, sink: &mut dyn Sink) -> Result<(), TrackError> {
        let &Round { now, targets, .. } = round;
        if let Source::Rings { attached, .. } = &mut self.source {
            attached.clear();
        }
        self.events(now, targets, sink)
    }

    fn events(&mut self, now: Time, targets: &[Target<'_>], sink: &mut dyn Sink) -> Result<(), TrackError> {
        let before = thread_cpu();
        let periods = self.control.periods();
        match &mut self.source {
            Source::Rings { group, kinds, attached, .. } => {
                for target in targets {
                    let pid = target.process.pid();
                    if attached.insert(pid) {
                        let call = |source| TrackError::call(NAME, format!("perf_event_open(pid {pid})"), source);
                        group.attach(pid).map_err(call)?;
                    }
                }
                group.drain(&mut |index, sample| {
                    let Some((access, address)) = access_of(kinds[index], sample) else { return };
                    let vpn = Vpn::of_address(address);
                    if let Some(space) = space_of(targets, sample.pid, vpn) {
                        sink.event(
                            space,
                            vpn,
                            Event::Sampled { access, period: sample.period.try_into().unwrap_or(u32::MAX) },
                        );
                    }
                });
            }
            Source::Spe(threads) => threads.collect(targets, period_of(Kind::Operations, periods) as u32, sink)?,
            Source::Emulated(ring) => ring.drain(&mut |sample| {
                let access = match sample.identifier {
                    emulated::LOADS => Access::Load,
                    emulated::STORES => Access::Store,
                    _ => return,
                };
                // An address that several targets have counts for none: its process is unknown.
                let vpn = Vpn::of_address(sample.address);
                let mut owners = targets.iter().filter(|target| contains(target.ranges, vpn));
                if let (Some(owner), None) = (owners.next(), owners.next()) {
                    let period = sample.period.try_into().unwrap_or(u32::MAX);
                    sink.event(owner.space, vpn, Event::Sampled { access, period });
                }
            }),
        }
        match self.control.spent(now, thread_cpu().saturating_sub(before)) {
            Some(periods) => self.apply(periods),
            None => Ok(()),
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Rings { group, .. } => Some(group.as_fd()),
            Source::Spe(threads) => Some(threads.poll.as_fd()),
            Source::Emulated(ring) => Some(ring.as_fd()),
        }
    }

    fn lost(&self) -> u64 {
        self.counts().lost
    }

    fn proof_kind(&self) -> ProofKind {
        ProofKind::Samples
    }

    fn set_sample_periods(&mut self, wanted: SamplePeriods) {
        let before = self.control.periods();
        self.control.set_floor(wanted);
        let periods = self.control.periods();
        if periods != before
            && let Err(error) = self.apply(periods)
        {
            tracing::warn!(%error, "the sampling period stays as it was");
        }
    }
}

fn layout() -> Layout {
    let fields = perf::PERF_SAMPLE_IDENTIFIER
        | perf::PERF_SAMPLE_TID
        | perf::PERF_SAMPLE_ADDR
        | perf::PERF_SAMPLE_PERIOD
        | perf::PERF_SAMPLE_DATA_SRC;
    Layout::new(fields.into()).expect("only fields of fixed size are asked for")
}

fn period_of(kind: Kind, periods: SamplePeriods) -> u64 {
    match kind {
        Kind::Loads => periods.loads.into(),
        Kind::Stores => periods.stores.into(),
        // Any operation is about as frequent as any store; IBS counts in steps of 16.
        Kind::Operations => u64::from(periods.stores) & !15,
    }
}

fn hardware_event(kind: u32, config: u64, period: u64) -> perf_event_attr {
    let mut event = perf_event_attr { type_: kind, config, ..Default::default() };
    event.__bindgen_anon_1.sample_period = period;
    event.set_exclude_kernel(1);
    event.set_exclude_hv(1);
    event
}

fn ibs_event(device: u32, periods: SamplePeriods) -> perf_event_attr {
    // Bit 19 (cnt_ctl): count operations, not cycles, so that a stalled core does not weigh more.
    let mut event = hardware_event(device, 1 << 19, period_of(Kind::Operations, periods));
    // Kernels before 6.12 refuse exclude_kernel for IBS; addresses of the kernel fall outside every target's ranges.
    event.set_exclude_kernel(0);
    event.set_exclude_hv(0);
    event
}

/// The events of Intel's list that this processor has. Loads from memory and stores must be among them.
fn intel_events(devices: &Path, periods: SamplePeriods) -> io::Result<(Vec<perf_event_attr>, Vec<Kind>)> {
    // On hybrid processors the device of the large cores has the events; on others raw events are type 4.
    let device = device_number(&devices.join("cpu_core/type")).unwrap_or(perf::PERF_TYPE_RAW);
    let (mut events, mut kinds) = (Vec::new(), Vec::new());
    for (index, (code, kind)) in INTEL_EVENTS.into_iter().enumerate() {
        let mut event = hardware_event(device, code, period_of(kind, periods));
        event.set_precise_ip(2);
        event.sample_type = layout().sample_type();
        match sys::perf::open(&event, std::process::id() as i32, -1) {
            Ok(_) => {
                events.push(event);
                kinds.push(kind);
            }
            // Persistent and remote memory are not everywhere; plain memory and stores must be there.
            Err(error) if index == 0 || kind == Kind::Stores => return Err(error),
            Err(_) => {}
        }
    }
    Ok((events, kinds))
}

fn device_number(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// What a sample stands for; `None` if it is not an access worth counting. The bits are those of `union
/// perf_mem_data_src`: the operation in bits 0 to 4, the level in bits 5 to 18, the level's number in bits 33 to 36.
fn access_of(kind: Kind, sample: &Sample) -> Option<(Access, u64)> {
    const OPERATION_LOAD: u64 = 2;
    const OPERATION_STORE: u64 = 4;
    /// PERF_MEM_LVL_LOC_RAM, REM_RAM1, REM_RAM2, shifted by PERF_MEM_LVL_SHIFT (5).
    const LEVEL_MEMORY: u64 = (0x80 | 0x100 | 0x200) << 5;
    const LEVEL_NUMBER_SHIFT: u32 = 33;
    /// PERF_MEM_LVLNUM_CXL, _RAM and _PMEM.
    const MEMORY_NUMBERS: [u64; 3] = [0x9, 0xd, 0xe];
    if sample.address == 0 {
        return None;
    }
    let access = match kind {
        Kind::Loads => Access::Load,
        Kind::Stores => Access::Store,
        Kind::Operations if sample.data_source & OPERATION_STORE != 0 => Access::Store,
        Kind::Operations if sample.data_source & OPERATION_LOAD != 0 => {
            let level_number = sample.data_source >> LEVEL_NUMBER_SHIFT & 0xf;
            let from_memory = sample.data_source & LEVEL_MEMORY != 0 || MEMORY_NUMBERS.contains(&level_number);
            from_memory.then_some(Access::Load)?
        }
        Kind::Operations => return None,
    };
    Some((access, sample.address))
}

/// Arm's SPE: one event with a trace buffer for each thread of the targets.
#[derive(Debug)]
struct SpeThreads {
    event: perf_event_attr,
    threads: BTreeMap<u32, SpeThread>,
    poll: OwnedFd,
    counts: RingCounts,
}

#[derive(Debug)]
struct SpeThread {
    pid: u32,
    _event: OwnedFd,
    ring: Ring,
    noted: RingCounts,
}

impl SpeThreads {
    fn open(devices: &Path, periods: SamplePeriods) -> io::Result<SpeThreads> {
        let device = devices.join("arm_spe_0");
        let number = device_number(&device.join("type")).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        let mut event = hardware_event(number, 0, period_of(Kind::Operations, periods));
        // The fields' places differ between kernels; the device says them. Loads and stores only, no branches.
        for field in ["load_filter", "store_filter"] {
            let text = std::fs::read_to_string(device.join("format").join(field))?;
            let bit = parse_config_bit(&text).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}/format/{field}: {text:?}", device.display()))
            })?;
            event.config |= 1 << bit;
        }
        event.sample_type = layout().sample_type();
        event.set_sample_id_all(1);
        // Opened once to learn of refusals now and not in the middle of a run.
        sys::perf::open(&event, std::process::id() as i32, -1)?;
        let poll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?;
        Ok(SpeThreads { event, threads: BTreeMap::new(), poll, counts: RingCounts::default() })
    }

    fn set_period(&mut self, periods: SamplePeriods) {
        self.event.__bindgen_anon_1.sample_period = period_of(Kind::Operations, periods);
        self.threads.clear();
    }

    fn watch(&mut self, targets: &[Target<'_>]) -> io::Result<()> {
        let mut alive = BTreeSet::new();
        for pid in targets.iter().map(|target| target.process.pid()) {
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for tid in tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok()) {
                alive.insert(tid);
                if self.threads.contains_key(&tid) {
                    continue;
                }
                let event = match sys::perf::open(&self.event, tid as i32, -1) {
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                    result => result?,
                };
                let ring = Ring::map_with_auxiliary(&event, layout(), 1, SPE_PAGES)?;
                use rustix::event::epoll;
                epoll::add(&self.poll, &event, epoll::EventData::new_u64(tid.into()), epoll::EventFlags::IN)?;
                self.threads.insert(tid, SpeThread { pid, _event: event, ring, noted: RingCounts::default() });
            }
        }
        self.threads.retain(|tid, _| alive.contains(tid));
        Ok(())
    }

    fn collect(&mut self, targets: &[Target<'_>], period: u32, sink: &mut dyn Sink) -> Result<(), TrackError> {
        let call = |source| TrackError::call(NAME, "perf_event_open(arm_spe)", source);
        self.watch(targets).map_err(call)?;
        for thread in self.threads.values_mut() {
            let mut lost = 0;
            thread.ring.drain(&mut |record| {
                // PERF_AUX_FLAG_TRUNCATED (1) and COLLISION (8): some samples are missing, the kernel does not say how many.
                if let Record::Auxiliary { flags, .. } = record {
                    lost += u64::from(flags & (1 | 8) != 0);
                }
            });
            thread.ring.drain_auxiliary(&mut |bytes| {
                for operation in spe::Records::new(bytes) {
                    // A load that hit a cache says nothing of the memory behind it.
                    if !operation.store && operation.missed_last_level == Some(false) {
                        continue;
                    }
                    let access = if operation.store { Access::Store } else { Access::Load };
                    let vpn = Vpn::of_address(operation.address);
                    if let Some(space) = space_of(targets, thread.pid, vpn) {
                        sink.event(space, vpn, Event::Sampled { access, period });
                    }
                }
            });
            let counts = thread.ring.counts();
            self.counts.add(RingCounts {
                lost: counts.lost - thread.noted.lost + lost,
                throttled: counts.throttled - thread.noted.throttled,
                unreadable: counts.unreadable - thread.noted.unreadable,
            });
            thread.noted = counts;
        }
        Ok(())
    }
}

/// Reads where a device keeps a field of one bit: "config:33".
fn parse_config_bit(text: &str) -> Option<u32> {
    text.trim().strip_prefix("config:")?.parse().ok().filter(|&bit| bit < 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_any_operation_only_stores_and_loads_from_memory_count() {
        let sample = |data_source| Sample { address: 0x1000, data_source, ..Sample::default() };
        let access = |data_source| access_of(Kind::Operations, &sample(data_source)).map(|(access, _)| access);
        let (load, store, l1_hit, local_memory) = (2, 4, 0x0a << 5, 0x82 << 5);
        assert_eq!(access(store | l1_hit), Some(Access::Store));
        assert_eq!(access(load | l1_hit), None);
        assert_eq!(access(load | local_memory), Some(Access::Load));
        assert_eq!(access(load | 0xd << 33), Some(Access::Load));
        assert_eq!(access(0), None);
        assert_eq!(access_of(Kind::Loads, &Sample::default()), None, "a sample without an address");
    }

    #[test]
    fn ibs_periods_are_multiples_of_16() {
        for periods in [SamplePeriods { loads: 199, stores: 100_007 }, SamplePeriods { loads: 199, stores: 1_500_003 }]
        {
            assert_eq!(period_of(Kind::Operations, periods) % 16, 0);
        }
    }

    #[test]
    fn config_bits_are_read() {
        assert_eq!(parse_config_bit("config:33\n"), Some(33));
        assert_eq!(parse_config_bit("config1:0-63"), None);
        assert_eq!(parse_config_bit("config:64"), None);
    }
}
