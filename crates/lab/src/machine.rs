//! The modelled machine: memory nodes, processors, and QEMU's command line for them.
//!
//! In: sizes and a [`Topology`]. Out: arguments for qemu-system-x86_64. Must not: start anything.
//!
//! QEMU emulates in software (TCG) throughout: stock kernels then boot everywhere, in CI without nested virtualisation too.
//! It models where memory lies, not how fast it is: both nodes take the same time.

use std::path::{Path, PathBuf};

use terrace_core::units::Bytes;

use crate::error::LabError;
use crate::kernel::{Kernel, series};

/// The highest memory that QEMU's q35 machine keeps in one piece below its hole.
pub(crate) const LARGEST_GUEST: Bytes = Bytes::mib(2816);

/// A path as part of an option of QEMU's.
pub(crate) fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

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
    /// Two nodes with processors each and a third, slower one without: two sockets with memory behind CXL.
    TwoSocketsSlow,
}

impl Topology {
    /// Every topology, the usual one first.
    pub const ALL: [Topology; 4] =
        [Topology::FastSlow, Topology::ThreeTiers, Topology::TwoSockets, Topology::TwoSocketsSlow];

    /// Its name, as scenarios and `--topology` have it.
    pub fn name(self) -> &'static str {
        match self {
            Topology::FastSlow => "fast-slow",
            Topology::ThreeTiers => "three-tiers",
            Topology::TwoSockets => "two-sockets",
            Topology::TwoSocketsSlow => "two-sockets-slow",
        }
    }

    /// How many nodes have processors.
    fn sockets(self) -> u32 {
        match self {
            Topology::FastSlow | Topology::ThreeTiers => 1,
            Topology::TwoSockets | Topology::TwoSocketsSlow => 2,
        }
    }
}

/// A machine to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// How the memory is laid out.
    pub topology: Topology,
    /// Memory of node 0; of each of the two sockets in [`Topology::TwoSocketsSlow`].
    pub fast: Bytes,
    /// Memory of the last node.
    pub slow: Bytes,
    /// Size of the zram device of [`Topology::ThreeTiers`].
    pub zram: Bytes,
    /// Processors of all nodes together.
    pub cpus: u32,
    /// Whether it can run virtual machines of its own: AMD's extension (SVM) with nested page tables, which QEMU emulates.
    pub kvm: bool,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine {
            topology: Topology::FastSlow,
            fast: Bytes::gib(1),
            slow: Bytes::gib(1),
            zram: Bytes::mib(512),
            cpus: 1,
            kvm: false,
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

/// Read latency in nanoseconds and bandwidth that HMAT tells of a processor's own node, of another socket's, and of the slow
/// one: of the order of local DRAM, of DRAM across sockets, and of memory behind CXL. Our choice: nothing in the guest is that
/// fast or slow, the figures only order the nodes.
const OWN: (u32, &str) = (80, "100G");
const OTHER_SOCKET: (u32, &str) = (140, "60G");
const SLOW: (u32, &str) = (300, "20G");
/// Distances in the SLIT: between two sockets, as firmware usually has it, and to a slow node: farther than another socket
/// where there is one, twice as far as the own node (10) otherwise.
const SOCKET_DISTANCE: u32 = 21;
const SLOW_DISTANCE: u32 = 20;
const SLOW_DISTANCE_OF_TWO_SOCKETS: u32 = 30;

/// The time of an instruction in deterministic time, unless a scenario sets another.
pub const INSTRUCTION_NANOSECONDS: u32 = 2;

/// Always given to the kernel. pti=on: without it the emulated TLB keeps translations across system calls and accessed bits
/// are not set again after a tracker cleared them. damon_stat: since 6.17 it would hold the only kdamond and clear bits.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 pti=on nokaslr damon_stat.enabled=N";

/// On a busy host QEMU may be kept from running just while the kernel tries whether its timer works, and the kernel then ends the boot.
const FAST_KERNEL_ARGUMENTS: &str = " no_timer_check";

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
        if self.topology.sockets() > self.cpus {
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
    /// `instruction` is how many nanoseconds one takes in deterministic time: a power of two. `memory`: files that are to be the nodes'
    /// memory, where others want to read it.
    pub(crate) fn arguments(
        &self,
        kernel: &Kernel,
        initramfs: &Path,
        mode: Mode,
        instruction: u32,
        more: &str,
        memory: &[PathBuf],
    ) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
        let hmat = self.topology != Topology::TwoSockets;
        let nodes = self.nodes();
        add(&["-machine", if hmat { "q35,hmat=on" } else { "q35" }]);
        add(&["-cpu", if self.kvm { "qemu64,-rdrand,-rdseed,+svm,+npt" } else { "qemu64,-rdrand,-rdseed" }]);
        add(&["-smp", &self.cpus.to_string(), "-nodefaults", "-no-user-config", "-display", "none"]);
        add(&["-no-reboot", "-nic", "none"]);
        add(&["-m", &format!("{}M", nodes.iter().map(|node| node.get() >> 20).sum::<u64>())]);
        for (node, size) in (0_u32..).zip(&nodes) {
            let backend = match memory.get(node as usize) {
                None => "memory-backend-ram".to_owned(),
                Some(file) => format!("memory-backend-file,share=on,mem-path={}", file.display()),
            };
            add(&["-object", &format!("{backend},id=memory{node},size={}M", size.get() >> 20)]);
            add(&["-numa", &format!("node,nodeid={node},memdev=memory{node}{}", self.processors_of(node))]);
        }
        let count = nodes.len() as u32;
        for (from, to) in
            (0..count).flat_map(|from| (0..count).map(move |to| (from, to))).filter(|(from, to)| from != to)
        {
            let distance = match from.max(to) {
                node if node < self.topology.sockets() => SOCKET_DISTANCE,
                _ if self.topology.sockets() > 1 => SLOW_DISTANCE_OF_TWO_SOCKETS,
                _ => SLOW_DISTANCE,
            };
            add(&["-numa", &format!("dist,src={from},dst={to},val={distance}")]);
        }
        let pairs = (0..self.topology.sockets()).flat_map(|from| (0..count).map(move |to| (from, to)));
        for (from, to) in pairs.filter(|_| hmat) {
            let (latency, bandwidth) = match to {
                to if to == from => OWN,
                to if to < self.topology.sockets() => OTHER_SOCKET,
                _ => SLOW,
            };
            let common = format!("hmat-lb,initiator={from},target={to},hierarchy=memory,data-type=access");
            add(&["-numa", &format!("{common}-latency,latency={latency}")]);
            add(&["-numa", &format!("{common}-bandwidth,bandwidth={bandwidth}")]);
        }
        match mode {
            Mode::Deterministic => {
                add(&["-accel", "tcg,thread=single", "-seed", "42"]);
                // Idle time is skipped (sleep=off).
                add(&["-icount", &format!("shift={},sleep=off", instruction.ilog2())]);
                add(&["-rtc", "base=2026-01-01T00:00:00,clock=vm"]);
            }
            Mode::Fast => add(&["-accel", "tcg,thread=multi"]),
        }
        add(&["-kernel", &kernel.image.to_string_lossy(), "-initrd", &initramfs.to_string_lossy()]);
        let timer = if mode == Mode::Fast { FAST_KERNEL_ARGUMENTS } else { "" };
        add(&["-append", format!("{KERNEL_ARGUMENTS}{timer} {more}").trim_end()]);
        arguments
    }

    /// Memory of each node.
    pub(crate) fn nodes(&self) -> Vec<Bytes> {
        match self.topology {
            Topology::TwoSocketsSlow => vec![self.fast, self.fast, self.slow],
            _ => vec![self.fast, self.slow],
        }
    }

    /// Which processors a node has, and from where its memory is reached.
    fn processors_of(&self, node: u32) -> String {
        let sockets = self.topology.sockets();
        let first = |node: u32| node * self.cpus / sockets;
        let hmat = self.topology != Topology::TwoSockets;
        // HMAT wants to know of each node from which one it is reached best; without it QEMU refuses the word.
        let initiator = |node: u32| if hmat { format!(",initiator={node}") } else { String::new() };
        if node >= sockets {
            return initiator(0);
        }
        let (from, to) = (first(node), first(node + 1) - 1);
        let list = if from == to { format!(",cpus={from}") } else { format!(",cpus={from}-{to}") };
        list + &initiator(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(release: &str) -> Kernel {
        Kernel { release: release.to_owned(), image: "/k/vmlinux".into(), modules: "/k/modules".into() }
    }

    fn line(machine: &Machine, mode: Mode) -> String {
        let more = "";
        machine.arguments(&kernel("6.12.1-amd64"), Path::new("/i.cpio"), mode, 2, more, &[]).join(" ")
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
            "no_timer_check",
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
        assert!(!text.contains("hmat") && !text.contains("initiator"));
    }

    #[test]
    fn two_sockets_with_slow_memory_are_three_nodes() {
        let text = line(&Machine { topology: Topology::TwoSocketsSlow, cpus: 2, ..Machine::default() }, Mode::Fast);
        for part in [
            "-m 3072M",
            "memdev=memory0,cpus=0,initiator=0",
            "memdev=memory1,cpus=1,initiator=1",
            "memdev=memory2,initiator=0",
            "dist,src=0,dst=1,val=21",
            "dist,src=1,dst=2,val=30",
            "initiator=1,target=0,hierarchy=memory,data-type=access-latency,latency=140",
            "initiator=1,target=2,hierarchy=memory,data-type=access-latency,latency=300",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
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
