//! The modelled machine: memory nodes, processors, and QEMU's command line for them.
//!
//! In: sizes and a [`Topology`]. Out: arguments for qemu-system-x86_64. Must not: start anything.
//!
//! QEMU emulates in software (TCG) throughout: stock kernels then boot everywhere, in CI without nested virtualisation too.
//! It models where memory lies, not how fast it is: both nodes take the same time.

use std::path::Path;

use terrace_core::units::Bytes;

use crate::error::LabError;
use crate::kernel::{Kernel, series};

/// How the memory is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Node 0 with the processors, node 1 without; HMAT tells that node 1 is slower.
    #[default]
    FastSlow,
    /// The same and, below it, compressed swap (zram).
    ThreeTiers,
    /// Two nodes with processors each, equally fast.
    TwoSockets,
}

/// A machine to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// How the memory is laid out.
    pub topology: Topology,
    /// Memory of node 0.
    pub fast: Bytes,
    /// Memory of node 1.
    pub slow: Bytes,
    /// Size of the zram device of [`Topology::ThreeTiers`].
    pub zram: Bytes,
    /// Processors of all nodes together.
    pub cpus: u32,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine {
            topology: Topology::FastSlow,
            fast: Bytes::gib(1),
            slow: Bytes::gib(1),
            zram: Bytes::mib(512),
            cpus: 1,
        }
    }
}

/// How time passes in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// By instructions: every run of the same guest does the same, whatever the host does. About two to four times slower.
    Deterministic,
    /// By the host's clock.
    Fast,
}

impl Mode {
    /// Deterministic in CI (the variable CI is `true`), fast elsewhere.
    pub fn of_environment() -> Mode {
        if std::env::var("CI").is_ok_and(|value| value == "true") { Mode::Deterministic } else { Mode::Fast }
    }

    /// `deterministic` or `fast`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Deterministic => "deterministic",
            Mode::Fast => "fast",
        }
    }
}

/// Read latency in nanoseconds and bandwidth that HMAT tells of node 0 and node 1: of the order of local DRAM and of memory
/// behind CXL. Our choice: nothing in the guest is that fast or slow, the figures only order the nodes.
const HMAT: [(u32, &str); 2] = [(80, "100G"), (300, "20G")];

/// Always given to the kernel. pti=on: without it the emulated TLB keeps translations across system calls and accessed bits
/// are not set again after a tracker cleared them. damon_stat: since 6.17 it would hold the only kdamond and clear bits.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 pti=on nokaslr damon_stat.enabled=N";

impl Machine {
    /// Checks that QEMU and the kernel can do this.
    ///
    /// # Errors
    /// With what does not go together.
    pub fn check(&self, kernel: &Kernel, mode: Mode) -> Result<(), LabError> {
        let wrong = |what: String| Err(LabError::Invalid(what));
        if self.cpus == 0 || self.cpus > 16 {
            return wrong(format!("{} processors: expected 1 to 16", self.cpus));
        }
        for (name, size) in [("fast", self.fast), ("slow", self.slow)] {
            if size < Bytes::mib(128) || size.get() % Bytes::mib(2).get() != 0 {
                return wrong(format!("{name} memory of {size}: expected at least 128 MiB, in steps of 2 MiB"));
            }
        }
        if self.fast < Bytes::mib(256) {
            return wrong(format!("fast memory of {}: the kernel and the programs themselves need 256 MiB", self.fast));
        }
        if self.topology == Topology::TwoSockets && self.cpus < 2 {
            return wrong("two sockets need two processors at least".to_owned());
        }
        if mode == Mode::Deterministic && self.cpus > 1 && series(&kernel.release) < (6, 2) {
            return wrong(format!(
                "kernel {} does not boot with instruction-counted time and {} processors: use one, or the fast mode",
                kernel.release, self.cpus
            ));
        }
        Ok(())
    }

    /// QEMU's arguments for the machine, its kernel and its first root, without serial ports.
    pub(crate) fn arguments(&self, kernel: &Kernel, initramfs: &Path, mode: Mode, more: &str) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
        let hmat = self.topology != Topology::TwoSockets;
        add(&["-machine", if hmat { "q35,hmat=on" } else { "q35" }, "-cpu", "qemu64,-rdrand,-rdseed"]);
        add(&[
            "-smp",
            &self.cpus.to_string(),
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-nic",
            "none",
        ]);
        add(&["-m", &format!("{}M", (self.fast + self.slow).get() >> 20)]);
        for (node, size) in [self.fast, self.slow].iter().enumerate() {
            add(&["-object", &format!("memory-backend-ram,id=memory{node},size={}M", size.get() >> 20)]);
            add(&["-numa", &format!("node,nodeid={node},memdev=memory{node}{}", self.processors_of(node))]);
        }
        for (from, to) in [(0, 1), (1, 0)] {
            add(&["-numa", &format!("dist,src={from},dst={to},val={}", if hmat { 20 } else { 21 })]);
        }
        if hmat {
            for (node, (latency, bandwidth)) in HMAT.iter().enumerate() {
                let common = format!("hmat-lb,initiator=0,target={node},hierarchy=memory,data-type=access");
                add(&["-numa", &format!("{common}-latency,latency={latency}")]);
                add(&["-numa", &format!("{common}-bandwidth,bandwidth={bandwidth}")]);
            }
        }
        match mode {
            Mode::Deterministic => {
                add(&["-accel", "tcg,thread=single", "-icount", "shift=1,sleep=off", "-seed", "42"]);
                add(&["-rtc", "base=2026-01-01T00:00:00,clock=vm"]);
            }
            Mode::Fast => add(&["-accel", "tcg,thread=multi"]),
        }
        add(&["-kernel", &kernel.image.to_string_lossy(), "-initrd", &initramfs.to_string_lossy()]);
        add(&["-append", format!("{KERNEL_ARGUMENTS} {more}").trim_end()]);
        arguments
    }

    /// Which processors a node has, and from where its memory is reached.
    fn processors_of(&self, node: usize) -> String {
        let list = |first: u32, last: u32| {
            if first == last { format!(",cpus={first}") } else { format!(",cpus={first}-{last}") }
        };
        match (self.topology, node) {
            (Topology::TwoSockets, 0) => list(0, self.cpus / 2 - 1),
            (Topology::TwoSockets, _) => list(self.cpus / 2, self.cpus - 1),
            (_, 0) => format!("{},initiator=0", list(0, self.cpus - 1)),
            (_, _) => ",initiator=0".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(release: &str) -> Kernel {
        Kernel { release: release.to_owned(), image: "/k/vmlinux".into(), modules: "/k/modules".into() }
    }

    fn line(machine: &Machine, mode: Mode) -> String {
        machine.arguments(&kernel("6.12.1-amd64"), Path::new("/i.cpio"), mode, "").join(" ")
    }

    #[test]
    fn the_slow_node_has_no_processor_and_is_slower_by_hmat() {
        let text = line(&Machine { cpus: 2, slow: Bytes::gib(2), ..Machine::default() }, Mode::Fast);
        for part in [
            "-machine q35,hmat=on",
            "-m 3072M",
            "node,nodeid=0,memdev=memory0,cpus=0-1,initiator=0",
            "node,nodeid=1,memdev=memory1,initiator=0",
            "target=1,hierarchy=memory,data-type=access-latency,latency=300",
            "pti=on",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("-icount"));
    }

    #[test]
    fn a_deterministic_guest_counts_instructions_in_one_thread() {
        let text = line(&Machine::default(), Mode::Deterministic);
        for part in ["tcg,thread=single", "-icount shift=1,sleep=off", "-seed 42", "clock=vm", "cpus=0,initiator=0"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn two_sockets_share_the_processors_and_have_no_hmat() {
        let text = line(&Machine { topology: Topology::TwoSockets, cpus: 4, ..Machine::default() }, Mode::Fast);
        assert!(text.contains("memdev=memory0,cpus=0-1 ") && text.contains("memdev=memory1,cpus=2-3 "), "{text}");
        assert!(!text.contains("hmat"));
    }

    #[test]
    fn what_cannot_boot_is_refused() {
        let check = |machine: Machine, release: &str, mode: Mode, says: &str| {
            let error = machine.check(&kernel(release), mode).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        let machine = Machine::default;
        check(Machine { cpus: 2, ..machine() }, "6.1.0-56-amd64", Mode::Deterministic, "instruction-counted");
        check(Machine { topology: Topology::TwoSockets, ..machine() }, "7.2.1-amd64", Mode::Fast, "two processors");
        check(Machine { slow: Bytes::mib(1), ..machine() }, "7.2.1-amd64", Mode::Fast, "slow memory");
        assert!(Machine { cpus: 2, ..machine() }.check(&kernel("6.1.0-56-amd64"), Mode::Fast).is_ok());
    }
}
