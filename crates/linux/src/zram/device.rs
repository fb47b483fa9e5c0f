//! A zram device of Terrace's own: which one it is beyond doubt, its swap header, and how it is taken away.
//!
//! In: a device's number. Out: its removal, for the run that set it up, the guard, or a later run. Must
//! not: touch a device that Terrace did not add, in use or not.
//!
//! The swap header carries the label `terrace-PID`, so that [`leftovers`] can find a device whose owner was killed. A Terrace in a pid namespace of
//! its own, whose pids mean nothing outside, writes `terrace/` and the namespace's number instead. The header is written by
//! util-linux's mkswap where it is installed, because it keeps up with the format; the one page it comes to is written here
//! otherwise, so that a slim container needs no tools.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use terrace_core::units::{Bytes, PAGE_BYTES};

use crate::guard::{Guard, ProtectToken, Undo};
use crate::pressure::{ZramUse, meminfo_bytes};
use crate::rights::Rights;
use crate::sys;
use crate::topology::swap::{SwapArea, read_swaps};

/// The label of Terrace's swap areas begins with this; the owner's pid follows. A label holds 16 bytes at most.
const LABEL: &str = "terrace-";
/// Or with this, and the owner's pid namespace as eight hexadecimal digits.
const LABEL_OF_NAMESPACE: &str = "terrace/";
/// Memory that taking pages back must leave free, as a share of what comes back: page tables and the kernel's own.
const TAKE_BACK_MARGIN: f64 = 0.05;

/// Why compressed swap could not be set up or taken away.
#[derive(Debug, thiserror::Error)]
pub enum ZramError {
    /// The kernel has no zram, or its module is not loaded.
    #[error("no compressed swap: /sys/class/zram-control is not there; load it with `modprobe zram` (CONFIG_ZRAM)")]
    NoModule,
    /// It takes root.
    #[error(
        "{step} is not permitted: setting up compressed swap needs root (CAP_SYS_ADMIN), and in a container a /sys that can be written and its \
         device cgroup's leave (docker run --privileged)"
    )]
    NotPermitted {
        /// What was tried.
        step: String,
    },
    /// The size makes no sense.
    #[error("a compressed swap of {size} is not possible: give at least {least}, such as zram:2GiB")]
    Size {
        /// What was asked for.
        size: Bytes,
        /// The least that works.
        least: Bytes,
    },
    /// The compressor is not in this kernel.
    #[error("the kernel's zram has no compressor {wanted:?}: choose one of {available}")]
    Algorithm {
        /// What was asked for.
        wanted: String,
        /// What there is.
        available: String,
    },
    /// Another area has the highest priority there is.
    #[error(
        "no compressed swap is set up: {device} has the highest priority there is (32767), so page-outs would go to both and nobody could say what \
         was saved; lower it with `swapoff {device}; swapon -p 100 {device}`, or use it as it is with --tier-slow swap:{device}"
    )]
    NoPriorityLeft {
        /// The area.
        device: String,
    },
    /// Someone holds the device.
    #[error("{device} is busy ({step}): find out who holds it with `lsof {device}`, then remove it with `{remedy}`")]
    Busy {
        /// The device.
        device: String,
        /// What was tried.
        step: &'static str,
        /// The commands that finish the job by hand.
        remedy: String,
    },
    /// Memory does not suffice to take the pages back.
    #[error(
        "{device} holds {used}, but only {available} of memory can be had to take them back: end the program that owns \
         them or free memory, then `{remedy}`"
    )]
    NoRoomToTakeBack {
        /// The device.
        device: String,
        /// What would come back.
        used: Bytes,
        /// What there is.
        available: Bytes,
        /// The commands that finish the job by hand.
        remedy: String,
    },
    /// The device is not the one that was set up.
    #[error("{device} is no longer the one that was set up here: left alone")]
    NotOurs {
        /// The device.
        device: String,
    },
    /// A step failed otherwise.
    #[error("{step}: {source}")]
    Step {
        /// What was tried, with the path.
        step: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Nobody would see to its removal if this process were killed.
    #[error("{0}")]
    Unprotected(Box<dyn std::error::Error + Send + Sync>),
}

/// One instance of a zram device: the number may be given to another one later, the sequence number never is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ZramIdentity {
    /// N of /dev/zramN.
    pub id: u32,
    /// /sys/block/zramN/diskseq (5.15 and later): counts every disk of this boot, so no two are alike.
    pub diskseq: Option<u64>,
    /// Whether its file in /dev was made by us: in a container nobody else does it.
    #[serde(default)]
    pub own_node: bool,
}

impl ZramIdentity {
    /// Adds a device.
    pub(super) fn add() -> Result<ZramIdentity, ZramError> {
        let control = Path::new("/sys/class/zram-control");
        if !control.exists() {
            return Err(ZramError::NoModule);
        }
        // Reading hot_add adds a device even where /sys is read-only; who could not remove it must not begin.
        let hot_remove = control.join("hot_remove");
        rustix::fs::access(&hot_remove, rustix::fs::Access::WRITE_OK)
            .map_err(|errno| step(&format!("writing to {}", hot_remove.display()), errno.into()))?;
        if !Rights::of_this_process().holds("CAP_SYS_ADMIN") {
            return Err(ZramError::NotPermitted { step: "swapon".to_owned() });
        }
        let hot_add = control.join("hot_add");
        // Reading the file is what adds a device; only root may.
        let text = std::fs::read_to_string(&hot_add).map_err(|source| step(&hot_add.display().to_string(), source))?;
        let id = text.trim().parse().map_err(|_| ZramError::Step {
            step: hot_add.display().to_string(),
            source: io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no device number")),
        })?;
        Ok(ZramIdentity { id, diskseq: diskseq(id), own_node: false })
    }

    /// Makes its file in /dev where that is missing, as it is in a container whose /dev is no devtmpfs.
    pub(super) fn make_node(&mut self) -> Result<(), ZramError> {
        let device = self.device();
        if device.exists() {
            return Ok(());
        }
        let made = || -> io::Result<()> {
            let text = std::fs::read_to_string(self.directory().join("dev"))?;
            let number = |part: Option<&str>| part.and_then(|part| part.trim().parse::<u32>().ok());
            let mut parts = text.split(':');
            let (Some(major), Some(minor)) = (number(parts.next()), number(parts.next())) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no device number")));
            };
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            let kind = rustix::fs::FileType::BlockDevice;
            rustix::fs::mknodat(rustix::fs::CWD, &device, kind, mode, rustix::fs::makedev(major, minor))?;
            Ok(())
        };
        made().map_err(|source| step(&format!("mknod {}", device.display()), source))?;
        self.own_node = true;
        Ok(())
    }

    /// Its device file.
    pub fn device(&self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.id))
    }

    /// The commands that remove it by hand.
    pub fn remedy(&self) -> String {
        let id = self.id;
        format!(
            "swapoff /dev/zram{id} && echo 1 >/sys/block/zram{id}/reset && echo {id} >/sys/class/zram-control/hot_remove"
        )
    }

    /// Switches the swap off, resets and removes the device. A device that is gone already is not an error.
    ///
    /// # Errors
    /// When memory does not suffice for what it holds, or it is busy, or is not the one that this record is about.
    pub fn take_away(&self) -> Result<(), ZramError> {
        if !self.directory().exists() {
            return Ok(());
        }
        if diskseq(self.id) != self.diskseq {
            return Err(ZramError::NotOurs { device: self.device().display().to_string() });
        }
        let device = self.device();
        let area = read_swaps(Path::new("/"))
            .map_err(|source| step("/proc/swaps", source))?
            .into_iter()
            .find(|area| Path::new(&area.device) == device);
        if let Some(area) = area {
            self.check_room(&area)?;
            sys::swapoff(&path_text(&device)).map_err(|source| match source.raw_os_error() {
                Some(libc::ENOMEM) => self.no_room(area.used_bytes, Bytes::ZERO),
                _ => step(&format!("swapoff {}", device.display()), source),
            })?;
        }
        self.reset()?;
        self.retry_while_busy("hot_remove", || {
            terrace_files::set(Path::new("/sys/class/zram-control/hot_remove"), self.id.to_string())
        })?;
        match self.own_node.then(|| std::fs::remove_file(&device)) {
            Some(Err(source)) if source.kind() != io::ErrorKind::NotFound => {
                Err(step(&format!("removing {}", device.display()), source))
            }
            _ => Ok(()),
        }
    }

    /// Gives up what it holds, its size and its settings.
    pub(super) fn reset(&self) -> Result<(), ZramError> {
        self.retry_while_busy("reset", || terrace_files::set(&self.directory().join("reset"), "1"))
    }

    /// Whether memory suffices to take the pages back: what is held must fit into what can be had, counting that
    /// the compressed copies go as the pages come.
    fn check_room(&self, area: &SwapArea) -> Result<(), ZramError> {
        let meminfo = std::fs::read_to_string("/proc/meminfo").map_err(|source| step("/proc/meminfo", source))?;
        let available = meminfo_bytes(&meminfo, "MemAvailable:").unwrap_or_default();
        let freed = ZramUse::read(Path::new("/"), self.id).map_or(Bytes::ZERO, |usage| usage.mem_used_bytes);
        let wanted = area.used_bytes.share(1.0 + TAKE_BACK_MARGIN);
        if wanted > available + freed { Err(self.no_room(area.used_bytes, available)) } else { Ok(()) }
    }

    fn no_room(&self, used: Bytes, available: Bytes) -> ZramError {
        ZramError::NoRoomToTakeBack {
            device: self.device().display().to_string(),
            used,
            available,
            remedy: self.remedy(),
        }
    }

    /// udev and blkid open a new or changed device for a moment, during which reset and hot_remove say EBUSY.
    fn retry_while_busy(&self, what: &'static str, attempt: impl Fn() -> io::Result<()>) -> Result<(), ZramError> {
        for wait_ms in [5, 20, 50, 100, 200, 400, 800] {
            match attempt() {
                Ok(()) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => sleep(Duration::from_millis(wait_ms)),
                Err(source) => return Err(step(&format!("{what} of {}", self.device().display()), source)),
            }
        }
        Err(ZramError::Busy { device: self.device().display().to_string(), step: what, remedy: self.remedy() })
    }

    pub(super) fn directory(&self) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}", self.id))
    }

    pub(super) fn read(&self, file: &str) -> Result<String, ZramError> {
        let path = self.directory().join(file);
        std::fs::read_to_string(&path).map_err(|source| step(&path.display().to_string(), source))
    }

    pub(super) fn write(&self, file: &str, value: &str) -> Result<(), ZramError> {
        let path = self.directory().join(file);
        terrace_files::set(&path, value)
            .map_err(|source| step(&format!("writing {value} to {}", path.display()), source))
    }
}

/// A device of this process, which goes when this is dropped.
#[derive(Debug)]
pub(super) struct OwnDevice {
    /// Which one it is.
    pub(super) identity: ZramIdentity,
    token: Option<ProtectToken>,
    active: bool,
}

impl OwnDevice {
    /// Adds a device, with its file in /dev. With a guard, it is removed even if this process is killed.
    pub(super) fn add(guard: Option<&Guard>) -> Result<OwnDevice, ZramError> {
        let mut identity = ZramIdentity::add()?;
        let node = identity.make_node();
        // From here on, leaving by `?` drops the device and thereby removes it.
        let mut own = OwnDevice { identity, token: None, active: true };
        node?;
        if let Some(guard) = guard {
            let undo = Undo::SwapOffZram { zram: own.identity.clone() };
            own.token = Some(guard.protect(undo).map_err(|error| ZramError::Unprotected(error.into()))?);
        }
        Ok(own)
    }

    /// Switches the swap off, if it is one, and removes the device.
    pub(super) fn take_away(&mut self) -> Result<(), ZramError> {
        if !self.active {
            return Ok(());
        }
        self.identity.take_away()?;
        self.active = false;
        if let Some(token) = self.token.take() {
            // If the guard cannot be notified, it finds the device gone, which is its goal.
            if let Err(error) = token.forget() {
                tracing::debug!(%error, "the guard was not told that its record is done");
            }
        }
        Ok(())
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        if let Err(error) = self.take_away() {
            // The guard, if there is one, still has its record and goes on trying.
            tracing::error!(%error, "the zram device could not be taken away");
        }
    }
}

/// Who set a compressed swap area up, by its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// The Terrace of this pid, of the machine's.
    Pid(u32),
    /// A Terrace in the pid namespace of this number.
    Namespace(u32),
}

impl fmt::Display for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Pid(pid) => write!(out, "pid {pid}"),
            Owner::Namespace(number) => write!(out, "in pid namespace {number}"),
        }
    }
}

impl Owner {
    /// This process, as it labels.
    fn here() -> Owner {
        match own_pid_namespace() {
            Some(number) if number != FIRST_PIDS => Owner::Namespace(number),
            // Where it cannot be read there is one namespace only.
            _ => Owner::Pid(std::process::id()),
        }
    }

    fn label(self) -> String {
        match self {
            Owner::Pid(pid) => format!("{LABEL}{pid}"),
            Owner::Namespace(number) => format!("{LABEL_OF_NAMESPACE}{number:08x}"),
        }
    }

    fn of_label(label: &str) -> Option<Owner> {
        match label.strip_prefix(LABEL_OF_NAMESPACE) {
            Some(number) => u32::from_str_radix(number, 16).ok().map(Owner::Namespace),
            None => label.strip_prefix(LABEL)?.parse().ok().map(Owner::Pid),
        }
    }

    /// Whether it lives, as seen with the machine's pids; `None` where that cannot be told.
    fn lives(self) -> Option<bool> {
        if !has_pids_of_machine() {
            return None;
        }
        Some(match self {
            Owner::Pid(pid) => Path::new(&format!("/proc/{pid}")).exists(),
            // Its guard lives as long as the namespace, and undoes what it left.
            Owner::Namespace(number) => namespaces().any(|other| other == number),
        })
    }
}

/// The pid namespaces in which processes run.
fn namespaces() -> impl Iterator<Item = u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| pid_namespace(&entry.path()))
}

fn own_pid_namespace() -> Option<u32> {
    pid_namespace(Path::new("/proc/self"))
}

/// The number of a process's pid namespace.
fn pid_namespace(process: &Path) -> Option<u32> {
    let link = std::fs::read_link(process.join("ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// A compressed swap area left by a Terrace that has exited.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Leftover {
    /// The device.
    pub zram: ZramIdentity,
    /// The Terrace that set it up.
    pub owner: Owner,
    /// How to remove it by hand.
    pub remedy: String,
}

/// The inode of the pid namespace that the machine booted with (`PROC_PID_INIT_INO` of linux/proc_ns.h).
const FIRST_PIDS: u32 = 4_026_531_836;

/// Whether pids here are those of the whole machine. Elsewhere the kernel kills everything at once when the namespace's first process ends, a
/// guard too, and a label's pid says nothing of whether its Terrace lives.
pub fn has_pids_of_machine() -> bool {
    own_pid_namespace().is_none_or(|number| number == FIRST_PIDS)
}

/// How long a leftover is tried for: its own guard may be at work on it, and the kernel refuses a second swapoff meanwhile.
const PERSISTENCE: Duration = Duration::from_secs(20);

impl Leftover {
    /// Removes it. That it is gone already, by its own guard or another Terrace, is no error.
    ///
    /// # Errors
    /// As [`ZramIdentity::take_away`], after some tries.
    pub fn remove(&self) -> Result<(), ZramError> {
        let is_there = || self.zram.directory().exists() && diskseq(self.zram.id) == self.zram.diskseq;
        let began = Instant::now();
        loop {
            match self.zram.take_away() {
                Err(error) if is_there() && began.elapsed() > PERSISTENCE => return Err(error),
                Err(_) if is_there() => sleep(Duration::from_millis(100)),
                _ => return Ok(()),
            }
        }
    }
}

/// Compressed swap areas labelled by a Terrace whose process is gone. Removing one is [`Leftover::remove`]. In a pid namespace of its own none is
/// known to be one: a label's pid is the machine's.
pub fn leftovers() -> Vec<Leftover> {
    if !has_pids_of_machine() {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let mut found: Vec<Leftover> = entries
        .flatten()
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.strip_prefix("zram")?.parse().ok()?;
            let zram = ZramIdentity { id, diskseq: diskseq(id), own_node: false };
            let owner = Owner::of_label(&read_label(&zram.device()).ok()??)?;
            (owner.lives() == Some(false)).then(|| Leftover { owner, remedy: zram.remedy(), zram })
        })
        .collect();
    found.sort_by_key(|leftover| leftover.zram.id);
    found
}

/// Whether a swap device was set up by a Terrace for a run of its own, this one or another: it goes when that run ends.
pub fn belongs_to_a_run(device: &str) -> bool {
    device.starts_with("/dev/zram")
        && read_label(Path::new(device)).ok().flatten().is_some_and(|label| Owner::of_label(&label).is_some())
}

fn diskseq(id: u32) -> Option<u64> {
    std::fs::read_to_string(format!("/sys/block/zram{id}/diskseq")).ok()?.trim().parse().ok()
}

pub(super) fn step(what: &str, source: io::Error) -> ZramError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::EROFS) => ZramError::NotPermitted { step: what.to_owned() },
        _ => ZramError::Step { step: what.to_owned(), source },
    }
}

pub(super) fn path_text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("a path that Terrace made up has no zero byte")
}

/// Makes the device a swap area, labelled with who it belongs to.
pub(super) fn make_swap(device: &Path, size: Bytes) -> Result<(), ZramError> {
    let label = Owner::here().label();
    let tool = ["/usr/sbin/mkswap", "/sbin/mkswap"].into_iter().find(|path| Path::new(path).exists());
    let Some(tool) = tool else { return write_header(device, size, &label) };
    let output = std::process::Command::new(tool)
        .args(["-L", &label])
        .arg(device)
        .env_clear()
        .output()
        .map_err(|source| step(tool, source))?;
    if output.status.success() {
        return Ok(());
    }
    Err(ZramError::Step {
        step: format!("{tool} {}", device.display()),
        source: io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    })
}

/// The first page of a swap area: version 1, the last page's number, uuid and label from byte 1024 on, and the
/// signature in the last ten bytes (`union swap_header` of linux/swap.h, unchanged since 2.2).
fn header(size: Bytes, label: &str) -> Vec<u8> {
    let mut page = vec![0_u8; PAGE_BYTES as usize];
    let last_page = u32::try_from(size.pages() - 1).unwrap_or(u32::MAX);
    page[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    // The uuid stays zero: nothing mounts this area by uuid, and a library for 16 random bytes is not worth it.
    page[1052..1052 + label.len()].copy_from_slice(label.as_bytes());
    page[PAGE_BYTES as usize - 10..].copy_from_slice(b"SWAPSPACE2");
    page
}

pub(super) fn write_header(device: &Path, size: Bytes, label: &str) -> Result<(), ZramError> {
    let write = || {
        let file = std::fs::File::options().write(true).open(device)?;
        file.write_all_at(&header(size, label), 0)?;
        file.sync_all()
    };
    write().map_err(|source| step(&format!("writing the swap header of {}", device.display()), source))
}

/// The label of a swap area, or `None` if the device holds none.
fn read_label(device: &Path) -> io::Result<Option<String>> {
    let mut page = vec![0_u8; PAGE_BYTES as usize];
    std::fs::File::open(device)?.read_exact_at(&mut page, 0)?;
    if !page.ends_with(b"SWAPSPACE2") {
        return Ok(None);
    }
    let label: Vec<u8> = page[1052..1068].iter().copied().take_while(|byte| *byte != 0).collect();
    Ok(String::from_utf8(label).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_written_here_carries_its_label() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        assert_eq!(read_label(file.path()).unwrap(), None, "an empty file is no swap area");
        write_header(file.path(), Bytes::mib(1), "terrace-4194304").unwrap();
        let label = read_label(file.path()).unwrap().unwrap();
        assert_eq!(Owner::of_label(&label), Some(Owner::Pid(4_194_304)));
        assert_eq!(Owner::of_label("data"), None);
        assert_eq!(Owner::of_label("terrace-"), None);
    }

    #[test]
    fn a_label_names_a_namespace_where_pids_mean_nothing_outside() {
        for owner in
            [Owner::Pid(1), Owner::Pid(4_194_304), Owner::Namespace(FIRST_PIDS + 1), Owner::Namespace(u32::MAX)]
        {
            let label = owner.label();
            assert!(label.len() <= 16, "{label}");
            assert_eq!(Owner::of_label(&label), Some(owner));
        }
        assert_eq!(Owner::of_label("terrace/"), None);
        let own = own_pid_namespace().unwrap();
        assert!(namespaces().any(|other| other == own), "this process runs in it");
    }

    #[test]
    fn util_linux_takes_our_header_for_a_swap_area() {
        let Some(tool) = ["/usr/sbin/swaplabel", "/sbin/swaplabel"].into_iter().find(|tool| Path::new(tool).exists())
        else {
            println!("SKIPPED util_linux_takes_our_header_for_a_swap_area: swaplabel is not installed");
            return;
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        write_header(file.path(), Bytes::mib(1), "terrace-77").unwrap();
        let output = std::process::Command::new(tool).arg(file.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("terrace-77"), "{text} {}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn a_record_of_a_device_that_is_gone_is_done() {
        let gone = ZramIdentity { id: 987_654, diskseq: Some(1), own_node: false };
        gone.take_away().unwrap();
    }
}
