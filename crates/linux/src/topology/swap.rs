//! Swap areas: what is active, and which of it is compressed memory.
//!
//! In: /proc/swaps. Out: [`SwapArea`]s, the highest priority first, which is the order in which the kernel fills them.
//! Must not: switch anything on or off (that is `zram`).

use std::io;
use std::path::Path;

use terrace_core::units::Bytes;

/// An active swap area.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SwapArea {
    /// Its device or file, such as /dev/zram1.
    pub device: String,
    /// Whether it is compressed memory.
    pub compressed: bool,
    /// How much it holds.
    pub size_bytes: Bytes,
    /// How much of that is taken.
    pub used_bytes: Bytes,
    /// Its priority; page-outs go to the area of the highest that has room.
    pub priority: i32,
}

impl SwapArea {
    /// Room that is left.
    pub fn free_bytes(&self) -> Bytes {
        self.size_bytes.saturating_sub(self.used_bytes)
    }
}

/// Reads /proc/swaps below `root`. A kernel without swap has no such file, and no areas.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn read_swaps(root: &Path) -> io::Result<Vec<SwapArea>> {
    match std::fs::read_to_string(root.join("proc/swaps")) {
        Ok(text) => Ok(parse_swaps(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Parses /proc/swaps: name, type, size and use in KiB, priority. Blanks in names are written as \040.
fn parse_swaps(text: &str) -> Vec<SwapArea> {
    let mut areas: Vec<SwapArea> = text
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let device = usual_name(&fields.first()?.replace("\\040", " "), fields.get(1)?);
            Some(SwapArea {
                compressed: device.starts_with("/dev/zram"),
                device,
                size_bytes: Bytes::kib(fields.get(2)?.parse().ok()?),
                used_bytes: Bytes::kib(fields.get(3)?.parse().ok()?),
                priority: fields.get(4)?.parse().ok()?,
            })
        })
        .collect();
    areas.sort_by_key(|area| std::cmp::Reverse(area.priority));
    areas
}

/// The name of a zram device in this /dev. The kernel prints the path by which it was switched on: one of another mount namespace, as of a container
/// that is gone, has lost its beginning.
fn usual_name(device: &str, kind: &str) -> String {
    let name = device.rsplit('/').next().unwrap_or_default();
    let number = name.strip_prefix("zram").unwrap_or_default();
    let is_zram = kind == "partition" && !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    if is_zram { format!("/dev/{name}") } else { device.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_come_in_the_order_in_which_they_fill() {
        let text = "\
Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/dev/sda2                               partition\t8388604\t\t1024\t\t-2
/dev/zram0                              partition\t4194300\t\t0\t\t100
/swap\\040file                           file\t\t1024\t\t0\t\t5
";
        let areas = parse_swaps(text);
        assert_eq!(
            areas.iter().map(|area| area.device.as_str()).collect::<Vec<_>>(),
            ["/dev/zram0", "/swap file", "/dev/sda2"]
        );
        assert_eq!(
            parse_swaps("Filename\n/zram1 partition 65532 0 0\n/x/zram2 file 8 0 1\n/x/zram/y partition 8 0 -2\n")
                .iter()
                .map(|area| (area.device.clone(), area.compressed))
                .collect::<Vec<_>>(),
            [("/x/zram2".to_owned(), false), ("/dev/zram1".to_owned(), true), ("/x/zram/y".to_owned(), false)]
        );
        assert!(areas[0].compressed && !areas[2].compressed);
        assert_eq!(areas[2].free_bytes(), Bytes::kib(8_388_604 - 1024));
        assert!(parse_swaps("Filename Type Size Used Priority\n").is_empty());
    }
}
