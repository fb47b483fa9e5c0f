//! The uncompressed kernel inside a bzImage.
//!
//! In: the file `vmlinuz` of a package. Out: the ELF image in it, which QEMU boots directly (PVH): seconds faster under
//! emulation than the image's own decompressor, and without address randomisation. Must not: search for magic numbers:
//! the header says where the payload lies.
//!
//! Header: Documentation/arch/x86/boot.rst: setup_sects at 0x1f1, "HdrS" at 0x202, payload_offset at 0x248 from the end
//! of the setup sectors, payload_length at 0x24c. Four bytes of length follow the compressed data.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::error::ImageError;

/// Finds and decompresses the kernel. The error says what was wrong with the image.
pub(crate) fn extract(image: &[u8]) -> Result<Vec<u8>, ImageError> {
    let payload = payload(image)?;
    let kernel = if payload.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let mut kernel = Vec::new();
        let decoder = zstd::stream::read::Decoder::with_buffer(payload).map_err(ImageError::Zstd)?;
        decoder.single_frame().read_to_end(&mut kernel).map_err(ImageError::Zstd)?;
        kernel
    } else if payload.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
        decompress_xz(payload)?
    } else {
        return Err(ImageError::Compression(payload[..payload.len().min(6)].to_vec()));
    };
    if kernel.starts_with(b"\x7fELF") { Ok(kernel) } else { Err(ImageError::NoElf) }
}

fn payload(image: &[u8]) -> Result<&[u8], ImageError> {
    let number = |at: usize| {
        image.get(at..at + 4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    };
    if image.get(0x202..0x206) != Some(b"HdrS") {
        return Err(ImageError::NoBzImage);
    }
    // Zero stands for four sectors, as in the oldest loaders.
    let sectors = match image[0x1f1] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let (Some(offset), Some(length)) = (number(0x248), number(0x24c)) else {
        return Err(ImageError::ShortHeader);
    };
    let start = (sectors + 1) * 512 + offset;
    let outside = ImageError::Outside { length, start, file: image.len() };
    image.get(start..start.saturating_add(length)).ok_or(outside)
}

/// Decompresses the first xz stream with the program `xz`, which dpkg needs as well.
pub(crate) fn decompress_xz(data: &[u8]) -> Result<Vec<u8>, ImageError> {
    let mut child = Command::new("xz")
        .args(["-dc", "--single-stream"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(ImageError::NoXz)?;
    let mut input = child.stdin.take().ok_or_else(|| ImageError::Xz("it has no input".to_owned()))?;
    // Both ends at once: a pipe holds less than either side has to say.
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // xz stops reading at the end of the first stream; what it said of the rest is in its exit status.
            let _ = input.write_all(data);
        });
        child.wait_with_output()
    });
    let output = output.map_err(|error| ImageError::Xz(error.to_string()))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(ImageError::Xz(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image_with(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 0x400];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend([0xcc; 16]);
        image.extend_from_slice(payload);
        image.extend([0xdd; 100]);
        image
    }

    #[test]
    fn the_kernel_is_found_by_the_header_and_decompressed() {
        let kernel = [b"\x7fELF".as_slice(), &[7; 100_000]].concat();
        let mut compressed = zstd::encode_all(kernel.as_slice(), 1).unwrap();
        compressed.extend((kernel.len() as u32).to_le_bytes());
        assert_eq!(extract(&image_with(&compressed)).unwrap(), kernel);
    }

    #[test]
    fn what_is_no_kernel_is_refused_with_the_reason() {
        let error = |image: &[u8]| extract(image).unwrap_err();
        assert!(matches!(error(b"short"), ImageError::NoBzImage));
        assert!(matches!(error(&image_with(b"\x1f\x8b gzip")), ImageError::Compression(magic) if magic[0] == 0x1f));
        let no_elf = zstd::encode_all(b"text".as_slice(), 1).unwrap();
        assert!(matches!(error(&image_with(&no_elf)), ImageError::NoElf));
        let mut cut = image_with(&[0; 5000]);
        cut.truncate(2000);
        assert!(matches!(error(&cut), ImageError::Outside { length: 5000, file: 2000, .. }));
    }
}
