//! Compressed recordings: gzip and zstd are decompressed on the way, others are refused with the command that does it.
//!
//! In: the bytes of a recording, of which the first ones tell. Out: its bytes decompressed, up to a bound: a file of kilobytes can
//! hold any amount. Must not: look at a file's name, or take a stream that is cut off for a whole one.

use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;

use crate::error::TraceError;
use crate::header::read_up_to;

const FORMAT: &str = "compressed";
const BUFFER_BYTES: usize = 1 << 16;

/// The recording, decompressed if it is compressed.
pub(super) fn unpacked<'a>(mut input: &'a mut dyn BufRead, most: u64) -> Result<Box<dyn BufRead + 'a>, TraceError> {
    let mut head = [0; 6];
    let got = read_up_to(&mut input, &mut head, 0)?;
    let whole = Cursor::new(head[..got].to_vec()).chain(input);
    let refused = |what: &str, command: &str| {
        let reason =
            format!("it is compressed by {what}; decompress it first: {command} | terrace trace import ... - NEW");
        Err(TraceError::record(FORMAT, 0, reason))
    };
    match head {
        [0x1f, 0x8b, 8, ..] => Ok(bounded("gzip", MultiGzDecoder::new(whole), most)),
        // A frame, or one of those that are skipped, with which parallel compressors begin.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            let decoder = zstd::stream::read::Decoder::with_buffer(whole);
            let decoder = decoder.map_err(|error| TraceError::io("preparing the decompressor", 0, &error))?;
            Ok(bounded("zstd", decoder, most))
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0] => refused("xz", "xz -dc FILE"),
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41] => refused("bzip2", "bzip2 -dc FILE"),
        [0x04, 0x22, 0x4d, 0x18, ..] => refused("lz4", "lz4 -dc FILE"),
        [b'P', b'K', 3, 4, ..] => refused("zip", "unzip -p FILE"),
        _ => Ok(Box::new(whole)),
    }
}

fn bounded<'a>(what: &'static str, inner: impl Read + 'a, most: u64) -> Box<dyn BufRead + 'a> {
    Box::new(BufReader::with_capacity(BUFFER_BYTES, Bounded { what, inner, most, left: most }))
}

struct Bounded<R> {
    what: &'static str,
    inner: R,
    most: u64,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        // At the bound, one byte more tells whether the recording ends there.
        let mut one = [0];
        let wanted = if room == 0 && !buffer.is_empty() { &mut one[..] } else { &mut buffer[..room] };
        match self.inner.read(wanted) {
            Ok(got) if got > 0 && self.left == 0 => {
                let most = self.most;
                let reason = format!("it decompresses to more than {most} bytes; --max-unpacked takes more");
                Err(io::Error::new(ErrorKind::FileTooLarge, reason))
            }
            Ok(got) => {
                self.left -= got as u64;
                Ok(got)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let reason = format!(
                    "its {} data is cut off or damaged ({error}); --keep-whole keeps what comes before",
                    self.what
                );
                Err(io::Error::new(error.kind(), reason))
            }
        }
    }
}
