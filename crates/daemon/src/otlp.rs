//! Metrics to an OpenTelemetry collector: OTLP over HTTP, in its JSON encoding.
//!
//! In: the published state and the collector's address. Out: a POST at each interval. Must not: stop or delay the daemon, or fill its log
//! when the collector is away: it says when that begins and when it ends.
//!
//! Source: opentelemetry-proto 1.x, `opentelemetry/proto/metrics/v1/metrics.proto`, and the OTLP specification's rules for JSON: 64-bit
//! numbers as text, enumerations as numbers. The names are those of `/metrics`; a collector that writes Prometheus leaves them as they are.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use terrace_core::text::visible;
use terrace_linux::metric::read::post;

use crate::config::Collector;
use crate::metrics::{self, Family, Kind};
use crate::shared::Shared;
use crate::view::Status;

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`: counters are sums since the daemon started.
const CUMULATIVE: u32 = 2;

/// Sends the metrics at each interval, for as long as the process lives.
///
/// # Errors
/// The thread cannot be started.
pub fn start(collector: Collector, interval: Duration, shared: Arc<Shared>) -> std::io::Result<()> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let send = move || {
        let mut away = false;
        loop {
            std::thread::sleep(interval);
            let status = shared.status();
            if status.uptime_seconds <= 0.0 {
                continue;
            }
            let body = payload(&status, shared.heartbeat.age(), SystemTime::now(), &host).to_string();
            match post(&collector.authority, &collector.path, "application/json", &body) {
                Ok(()) if away => {
                    away = false;
                    tracing::info!(%collector, "the collector takes the metrics again");
                }
                Ok(()) => {}
                Err(_) if away => {}
                Err(error) => {
                    away = true;
                    let reason = visible(&error.to_string()).into_owned();
                    tracing::warn!(%collector, reason, "metrics.otlp: the collector does not take the metrics; it is tried again at each interval");
                }
            }
        }
    };
    std::thread::Builder::new().name("otlp".to_owned()).stack_size(256 << 10).spawn(send).map(drop)
}

/// An `ExportMetricsServiceRequest`.
fn payload(status: &Status, loop_age: Duration, now: SystemTime, host: &str) -> Value {
    let now_nanos = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let time = Times {
        start: now_nanos.saturating_sub((status.uptime_seconds * 1e9) as u128).to_string(),
        now: now_nanos.to_string(),
    };
    let mut families = metrics::families(status);
    families.push(metrics::loop_age_family(loop_age));
    let resource = [("service.name", "terraced"), ("service.version", &status.version), ("host.name", host)];
    json!({ "resourceMetrics": [{
        "resource": { "attributes": attributes(&resource) },
        "scopeMetrics": [{
            "scope": { "name": "terrace", "version": status.version },
            "metrics": families.iter().filter(|family| !family.series.is_empty()).map(|family| time.metric(family)).collect::<Vec<_>>(),
        }],
    }] })
}

/// When the daemon started and when the figures were taken, in nanoseconds since 1970.
struct Times {
    start: String,
    now: String,
}

impl Times {
    fn metric(&self, family: &Family<'_>) -> Value {
        let points: Vec<Value> = family
            .series
            .iter()
            .filter(|(_, value)| value.is_finite())
            .map(|(labels, value)| {
                json!({
                    "attributes": attributes(labels), "startTimeUnixNano": self.start, "timeUnixNano": self.now, "asDouble": value,
                })
            })
            .collect();
        let mut metric = json!({ "name": family.name, "description": family.help, "unit": unit(family.name) });
        match family.kind {
            Kind::Gauge => metric["gauge"] = json!({ "dataPoints": points }),
            Kind::Counter => {
                metric["sum"] =
                    json!({ "dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": true });
            }
        }
        metric
    }
}

fn attributes(labels: &[(&str, &str)]) -> Vec<Value> {
    labels.iter().map(|(key, value)| json!({ "key": key, "value": { "stringValue": value } })).collect()
}

/// The unit in the words of UCUM, as OpenTelemetry asks: what the name says.
fn unit(name: &str) -> &'static str {
    let name = name.trim_end_matches("_total");
    let units = [("_bytes_per_second", "By/s"), ("_seconds", "s"), ("_bytes", "By"), ("_ratio", "1")];
    units.iter().find(|(suffix, _)| name.ends_with(suffix)).map_or("", |(_, unit)| unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{Class, Moves, Own, Tier};

    #[test]
    fn every_series_becomes_a_point() {
        let moves = Moves { from: "dram".to_owned(), to: "zram".to_owned(), reason: "cold".to_owned(), pages: 2 };
        let status = Status {
            version: "1.2.3".to_owned(),
            uptime_seconds: 2.0,
            own: Own { cpu_seconds: 1.5, ..Own::default() },
            tiers: vec![Tier { name: "dram".to_owned(), capacity_bytes: 4096, ..Tier::default() }],
            classes: vec![Class { name: "we\"b".to_owned(), moves: vec![moves], ..Class::default() }],
            ..Status::default()
        };
        let body = payload(&status, Duration::from_millis(500), UNIX_EPOCH + Duration::from_secs(10), "here");
        let one = &body["resourceMetrics"][0];
        assert_eq!(one["resource"]["attributes"][2], json!({ "key": "host.name", "value": { "stringValue": "here" } }));
        let metrics = one["scopeMetrics"][0]["metrics"].as_array().unwrap();
        let metric = |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap();
        let cpu = metric("terrace_cpu_seconds_total");
        assert_eq!((cpu["unit"].as_str(), cpu["sum"]["isMonotonic"].as_bool()), (Some("s"), Some(true)));
        assert_eq!(
            cpu["sum"]["dataPoints"][0],
            json!({ "attributes": [], "startTimeUnixNano": "8000000000", "timeUnixNano": "10000000000", "asDouble": 1.5 })
        );
        assert_eq!(metric("terrace_loop_age_seconds")["gauge"]["dataPoints"][0]["asDouble"], 0.5);
        let moved = &metric("terrace_moved_bytes_total")["sum"]["dataPoints"][0];
        assert_eq!(moved["attributes"].as_array().unwrap().len(), 4);
        assert_eq!(moved["attributes"][0]["value"]["stringValue"], "we\"b");
        assert_eq!(moved["asDouble"], 8192.0);
        // As many points as lines of /metrics, and no metric without any.
        let text = metrics::text(&status) + &metrics::loop_age(Duration::ZERO);
        let points = |metric: &Value| {
            ["gauge", "sum"]
                .iter()
                .filter_map(|kind| metric[kind]["dataPoints"].as_array())
                .map(Vec::len)
                .sum::<usize>()
        };
        assert!(metrics.iter().all(|metric| points(metric) > 0));
        assert_eq!(
            metrics.iter().map(points).sum::<usize>(),
            text.lines().filter(|line| !line.starts_with('#')).count()
        );
    }
}
