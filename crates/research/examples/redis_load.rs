//! A load for a Redis or memcached server: fills it, then reads keys by zipf and reports throughput and latency.
//!
//! redis-benchmark draws its keys uniformly, which is the one distribution that gives tiering nothing to do; hence this
//! client. In: a port on this machine. Out: one JSON object on stdout. Must not: talk to any other address.
//!
//! `redis_load --port 7777 --fill 1GiB --value 1KiB --seconds 60 --connections 4 --exponent 0.99`

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use terrace_core::random::mix;
use terrace_core::units::Bytes;
use terrace_workloads::random::{Permutation, Random, Zipf};

#[derive(Parser)]
struct Arguments {
    /// The server's port on 127.0.0.1.
    #[arg(long)]
    port: u16,
    /// What the server speaks.
    #[arg(long, value_enum, default_value_t = Protocol::Redis)]
    protocol: Protocol,
    /// Write this much before reading; 0 reads what is there.
    #[arg(long, default_value = "0")]
    fill: Bytes,
    /// What is (or was) filled, to know the keys.
    #[arg(long, default_value = "1GiB")]
    data: Bytes,
    /// Bytes of a value.
    #[arg(long, default_value = "1KiB")]
    value: Bytes,
    /// Read for so long.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Do not count this many seconds at the start.
    #[arg(long, default_value_t = 0)]
    warm: u64,
    /// Connections, each on its own thread, one request at a time.
    #[arg(long, default_value_t = 4)]
    connections: u64,
    /// Exponent of the zipf.
    #[arg(long, default_value_t = 0.99)]
    exponent: f64,
    /// Seed of the draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a server speaks: Redis's RESP2, or memcached's text protocol (doc/protocol.txt of memcached).
#[derive(Clone, Copy, ValueEnum)]
enum Protocol {
    Redis,
    Memcached,
}

impl Protocol {
    fn set(self, key: u64, value: &[u8]) -> Vec<u8> {
        let bytes = value.len();
        let head = match self {
            Self::Redis => format!("*3\r\n$3\r\nSET\r\n$12\r\n{key:012}\r\n${bytes}\r\n"),
            Self::Memcached => format!("set {key:012} 0 0 {bytes}\r\n"),
        };
        [head.as_bytes(), value, b"\r\n"].concat()
    }

    fn stored(self) -> &'static str {
        match self {
            Self::Redis => "+OK\r\n",
            Self::Memcached => "STORED\r\n",
        }
    }

    fn get(self, key: u64) -> String {
        match self {
            Self::Redis => format!("*2\r\n$3\r\nGET\r\n$12\r\n{key:012}\r\n"),
            Self::Memcached => format!("get {key:012}\r\n"),
        }
    }

    /// The line before a value, and what follows it.
    fn around(self, key: u64, bytes: u64) -> (String, &'static str) {
        match self {
            Self::Redis => (format!("${bytes}\r\n"), "\r\n"),
            Self::Memcached => (format!("VALUE {key:012} 0 {bytes}\r\n"), "\r\nEND\r\n"),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let keys = arguments.data.get() / arguments.value.get();
    if arguments.fill > Bytes::ZERO {
        fill(&arguments, arguments.fill.get() / arguments.value.get())?;
    }
    if arguments.seconds == 0 {
        return Ok(());
    }
    let zipf = Zipf::new(keys, arguments.exponent);
    let scramble = Permutation::new(keys, 7);
    let mut all = std::thread::scope(|scope| -> anyhow::Result<Vec<u32>> {
        let threads: Vec<_> = (0..arguments.connections)
            .map(|number| {
                let (arguments, zipf, scramble) = (&arguments, &zipf, &scramble);
                scope.spawn(move || read(arguments, number, zipf, scramble))
            })
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().map_err(|_| anyhow::anyhow!("a connection's thread panicked"))??);
        }
        Ok(all)
    })?;
    all.sort_unstable();
    let at = |share: f64| f64::from(all[((all.len() - 1) as f64 * share) as usize]) / 1000.0;
    let result = serde_json::json!({
        "requests": all.len(),
        "requests_per_second": all.len() as f64 / (arguments.seconds - arguments.warm) as f64,
        "p50_microseconds": at(0.5), "p99_microseconds": at(0.99), "p999_microseconds": at(0.999),
        "keys": keys, "value_bytes": arguments.value.get(), "exponent": arguments.exponent,
    });
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{result}")?;
    Ok(())
}

/// The value of a key: half of it noise that depends on the key, half a fixed text, so that it compresses about 2:1.
fn value(key: u64, bytes: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(bytes + 8);
    let mut word = mix(key + 1);
    while value.len() < bytes / 2 {
        word = mix(word);
        value.extend_from_slice(&word.to_le_bytes());
    }
    while value.len() < bytes {
        value.extend_from_slice(b"terrace ");
    }
    value.truncate(bytes);
    value
}

fn connect(port: u16) -> anyhow::Result<(BufReader<TcpStream>, TcpStream)> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok((BufReader::with_capacity(1 << 16, stream.try_clone()?), stream))
}

fn fill(arguments: &Arguments, keys: u64) -> anyhow::Result<()> {
    let (mut reader, mut writer) = connect(arguments.port)?;
    let mut line = String::new();
    for first in (0..keys).step_by(256) {
        let last = (first + 256).min(keys);
        let mut batch = Vec::new();
        for key in first..last {
            batch.extend(arguments.protocol.set(key, &value(key, arguments.value.get() as usize)));
        }
        writer.write_all(&batch)?;
        for _ in first..last {
            line.clear();
            reader.read_line(&mut line)?;
            anyhow::ensure!(line == arguments.protocol.stored(), "setting a key was answered {line:?}");
        }
    }
    Ok(())
}

/// Reads by zipf until the time is up; every value is checked. Returns the latencies in nanoseconds.
fn read(arguments: &Arguments, number: u64, zipf: &Zipf, scramble: &Permutation) -> anyhow::Result<Vec<u32>> {
    let (mut reader, mut writer) = connect(arguments.port)?;
    let mut random = Random::new(arguments.seed, number);
    let mut latencies = Vec::new();
    let mut line = String::new();
    let (protocol, bytes) = (arguments.protocol, arguments.value.get());
    let mut body = vec![0; bytes as usize + protocol.around(0, bytes).1.len()];
    let began = Instant::now();
    let warm = Duration::from_secs(arguments.warm);
    while began.elapsed() < Duration::from_secs(arguments.seconds) {
        let key = scramble.apply(zipf.draw(&mut random));
        let request = protocol.get(key);
        let (before, _) = protocol.around(key, bytes);
        let sent = Instant::now();
        writer.write_all(request.as_bytes())?;
        line.clear();
        reader.read_line(&mut line)?;
        anyhow::ensure!(line == before, "GET {key:012} answered {line:?}");
        reader.read_exact(&mut body)?;
        let latency = sent.elapsed();
        if began.elapsed() > warm {
            latencies.push(latency.as_nanos().min(u128::from(u32::MAX)) as u32);
        }
        // Checking all bytes would cost more than the request; the first words depend on the key.
        anyhow::ensure!(body[..8] == mix(mix(key + 1)).to_le_bytes(), "the value of {key:012} is not what was stored");
    }
    Ok(latencies)
}
