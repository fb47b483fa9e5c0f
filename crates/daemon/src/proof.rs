//! Proof mode of a class: made from its configuration, its news and its view.
//!
//! In: a class. Out: a [`LiveProof`], lines for the history, the view. Must not: judge; `terrace_linux::live_proof` does.

use std::time::SystemTime;

use terrace_linux::live_proof::{LiveProof, News};

use crate::config::Class;
use crate::view;

/// The proof that a class asks for, or why there is none.
pub fn begin(class: &Class) -> (Option<LiveProof>, Option<String>) {
    let Some((metric, window)) = class.spec.proof() else { return (None, None) };
    // The same order after each restart would meet a rhythm of the programs again.
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64 >> 10;
    match LiveProof::new(metric.clone(), window, class.spec.left_alone, class.spec.max_slowdown, seed, window) {
        Ok(proof) => (Some(proof), None),
        Err(why) => (None, Some(format!("metric {metric}: {why}"))),
    }
}

/// News of a proof for the history.
pub fn told(news: &News, metric: &str, allowed: f64) -> String {
    match news {
        News::Unmeasured(why) => {
            format!("proof: metric {metric}: {why}; the class is managed, and what that does to it is not measured")
        }
        News::Measured => format!("proof: metric {metric} can be read again"),
        News::Harm { interval: (low, high), rest, .. } => format!(
            "proof: managing it costs {:.2} to {:.2} % of its speed, {allowed:.2} % are allowed; management of it stops for {} min",
            high * -100.0,
            low * -100.0,
            rest.as_secs() / 60
        ),
        News::Thawed => "proof: it is managed again, and whether that harms is measured anew".to_owned(),
    }
}

/// The view of it.
pub fn view(proof: &LiveProof) -> view::Proof {
    let state = proof.state();
    let verdict = match () {
        () if state.frozen => "harmful",
        () if proof.is_harmless() => "harmless",
        () => "measuring",
    };
    view::Proof {
        metric: state.metric,
        windows: state.windows,
        gain: state.gain,
        interval: state.gain_low.zip(state.gain_high),
        frozen: state.frozen,
        verdict: verdict.to_owned(),
        error: state.error,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn harm_is_told_as_a_loss_with_what_was_allowed() {
        let rest = Duration::from_secs(600);
        let harm = News::Harm { gain: -0.05, interval: (-0.061, -0.042), windows: 12, rest };
        let text = told(&harm, "cpu", 2.0);
        assert!(
            text.contains("4.20 to 6.10 % of its speed, 2.00 % are allowed") && text.contains("for 10 min"),
            "{text}"
        );
    }
}
