//! Where a kernel keeps what in its structures, by its own type information (BTF).
//!
//! In: an uncompressed kernel image. Out: byte offsets of members. Must not: guess an offset, or trust a number of the file's unchecked.
//!
//! The format is that of Documentation/bpf/btf.rst; the image is an ELF file with a section `.BTF`.
//!
//! Why not a crate: `btf-rs` 2.0 is under the LGPL, which crates of ours may not be; libbpf reads it too, but is a C library, which the laboratory
//! does without.

use crate::error::ImageError;

/// First word of the section.
const MAGIC: u16 = 0xeb9f;
/// Kinds of type, by their numbers there.
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
/// How deep members without a name are looked into,
const DEPTH: u32 = 8;
/// and how many members are, in all: types that hold themselves would be looked into for ever. A kernel's task has some hundreds.
const MOST_MEMBERS: u32 = 1 << 16;

/// The types of a kernel.
#[derive(Debug)]
pub struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type begins in `types`; the first is number 1.
    starts: Vec<usize>,
}

impl<'a> Types<'a> {
    /// Finds them in an image.
    ///
    /// # Errors
    /// With what is missing or makes no sense.
    pub fn of_image(image: &'a [u8]) -> Result<Types<'a>, ImageError> {
        Types::new(section(image, ".BTF").ok_or(ImageError::NoTypes)?)
    }

    fn new(btf: &'a [u8]) -> Result<Types<'a>, ImageError> {
        Types::checked(btf).ok_or(ImageError::BadTypes)
    }

    fn checked(btf: &'a [u8]) -> Option<Types<'a>> {
        if u16::from_le_bytes(btf.first_chunk().copied()?) != MAGIC {
            return None;
        }
        let body = btf.get(word(btf, 4)? as usize..)?;
        let part = |at: usize| {
            let from = word(btf, at)? as usize;
            body.get(from..from.checked_add(word(btf, at + 4)? as usize)?)
        };
        let (types, strings) = (part(8)?, part(16)?);
        let mut starts = Vec::new();
        let mut at = 0;
        while at < types.len() {
            starts.push(at);
            let info = word(types, at + 4)?;
            let count = (info & 0xffff) as usize;
            // What follows the twelve bytes that every type has.
            let more = match info >> 24 & 31 {
                // An integer, a variable, a tag of a declaration.
                1 | 14 | 17 => 4,
                // An array.
                3 => 12,
                // Structures, unions, sections of data, enumerations of 64 bits.
                KIND_STRUCT | KIND_UNION | 15 | 19 => 12 * count,
                // Enumerations, and the parameters of functions.
                6 | 13 => 8 * count,
                // Pointers, forward declarations, names and qualifiers of other types, functions, floats.
                2 | 7..=12 | 16 | 18 => 0,
                _ => return None,
            };
            at += 12 + more;
        }
        Some(Types { types, strings, starts })
    }

    /// Byte offset of a member of a structure, in structures without a name within it too; `None` where there is none, or where it
    /// does not begin at a byte.
    pub fn offset(&self, structure: &str, member: &str) -> Option<u64> {
        let mut all = self.starts.iter().filter(|start| {
            self.kind(**start) == Some(KIND_STRUCT) && self.name(**start) == Some(structure.as_bytes())
        });
        let mut left = MOST_MEMBERS;
        all.find_map(|start| self.within(*start, member.as_bytes(), DEPTH, &mut left))
            .filter(|bits| bits % 8 == 0)
            .map(|bits| bits / 8)
    }

    fn within(&self, start: usize, member: &[u8], depth: u32, left: &mut u32) -> Option<u64> {
        let info = word(self.types, start + 4)?;
        for index in 0..(info & 0xffff) as usize {
            *left = left.checked_sub(1)?;
            let at = start + 12 + 12 * index;
            // With the flag the upper byte of an offset is the width of a bit field.
            let bits = word(self.types, at + 8)? & if info >> 31 == 1 { 0x00ff_ffff } else { u32::MAX };
            let name = self.name(at)?;
            if name == member {
                return Some(u64::from(bits));
            }
            if name.is_empty() && depth > 0 {
                let inner = *self.starts.get((word(self.types, at + 4)? as usize).checked_sub(1)?)?;
                if matches!(self.kind(inner)?, KIND_STRUCT | KIND_UNION)
                    && let Some(found) = self.within(inner, member, depth - 1, left)
                {
                    return Some(u64::from(bits).wrapping_add(found));
                }
            }
        }
        None
    }

    fn kind(&self, start: usize) -> Option<u32> {
        Some(word(self.types, start + 4)? >> 24 & 31)
    }

    /// The name whose place in the strings stands at this place in the types.
    fn name(&self, at: usize) -> Option<&'a [u8]> {
        let rest = self.strings.get(word(self.types, at)? as usize..)?;
        rest.iter().position(|byte| *byte == 0).map(|end| &rest[..end])
    }
}

/// A section of an ELF file of 64 bits, least byte first.
fn section<'a>(image: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    if image.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(image.get(at..)?.first_chunk().copied()?)));
    let long = |at: usize| usize::try_from(u64::from_le_bytes(image.get(at..)?.first_chunk().copied()?)).ok();
    let (headers, size, count, names) = (long(0x28)?, half(0x3a)?, half(0x3c)?, half(0x3e)?);
    let header = |index: usize| headers.checked_add(index.checked_mul(size)?);
    let bytes = |index: usize| {
        let at = header(index)?;
        let from = long(at.checked_add(0x18)?)?;
        image.get(from..from.checked_add(long(at.checked_add(0x20)?)?)?)
    };
    let names = bytes(names)?;
    (0..count).find_map(|index| {
        let name = names.get(word(image, header(index)?)? as usize..)?;
        name.strip_prefix(wanted.as_bytes()).filter(|rest| rest.first() == Some(&0)).and_then(|_| bytes(index))
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct task { int flags; struct { char pad[..]; struct { long mm; }; } }`, after an integer and a bit field's structure.
    fn btf() -> Vec<u8> {
        let strings = b"\0int\0task\0flags\0mm\0";
        let (int, task, flags, mm) = (1, 5, 10, 16);
        let structure = |name: u32, flag: u32, members: &[[u32; 3]]| {
            let mut words = vec![name, flag << 31 | KIND_STRUCT << 24 | members.len() as u32, 64];
            members.iter().for_each(|member| words.extend(member));
            words
        };
        let types: Vec<u32> = [
            vec![int, 1 << 24, 4, 32],
            structure(0, 0, &[[mm, 1, 64]]),
            structure(0, 1, &[[0, 2, 128]]),
            structure(task, 1, &[[flags, 1, 7 << 24 | 32], [0, 3, 256]]),
        ]
        .concat();
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([1, 0]);
        for word in [24, 0, types.len(), types.len(), strings.len()] {
            bytes.extend((word as u32).to_le_bytes());
        }
        [bytes, types, strings.to_vec()].concat()
    }

    #[test]
    fn members_are_found_within_structures_without_a_name() {
        let bytes = btf();
        let types = Types::new(&bytes).unwrap();
        assert_eq!(types.offset("task", "flags"), Some(4));
        assert_eq!(types.offset("task", "mm"), Some((256 + 128 + 64) / 8));
        assert_eq!((types.offset("task", "pgd"), types.offset("mm", "mm")), (None, None));
    }

    #[test]
    fn structures_that_hold_themselves_are_looked_into_for_a_while() {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        let members = 60;
        let mut types = vec![1, KIND_STRUCT << 24 | members, 64];
        (0..members).for_each(|_| types.extend([0, 1, 64]));
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend([1, 0]);
        for word in [24, 0, types.len() as u32, types.len() as u32, 6] {
            bytes.extend(word.to_le_bytes());
        }
        let bytes = [bytes, types, b"\0task\0".to_vec()].concat();
        assert_eq!(Types::new(&bytes).unwrap().offset("task", "mm"), None);
    }

    #[test]
    fn what_is_cut_off_or_no_image_is_refused() {
        let bytes = btf();
        for end in 0..bytes.len() {
            assert!(Types::new(&bytes[..end]).is_err(), "{end}");
        }
        assert!(matches!(Types::of_image(b"\x7fELF\x02\x01"), Err(ImageError::NoTypes)));
        assert!(Types::of_image(b"").is_err());
    }

    #[test]
    fn a_section_of_an_image_is_found_by_its_name() {
        let mut image = vec![0; 0x40];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[0x28..0x30].copy_from_slice(&0x60_u64.to_le_bytes());
        for (at, value) in [(0x3a, 0x40_u16), (0x3c, 2), (0x3e, 1)] {
            image[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        image.extend_from_slice(b"\0.BTF_ids\0.BTF\0");
        image.resize(0x60, b'x');
        for (name, from, size) in [(10_u32, 0x50_u64, 4_u64), (1, 0x40, 0x10)] {
            let mut header = [0; 0x40];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[0x18..0x20].copy_from_slice(&from.to_le_bytes());
            header[0x20..0x28].copy_from_slice(&size.to_le_bytes());
            image.extend_from_slice(&header);
        }
        assert_eq!(section(&image, ".BTF"), Some(&image[0x50..0x54]));
        assert_eq!(section(&image, ".text"), None);
    }
}
