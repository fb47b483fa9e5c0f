//! What the slow tier costs the program now, and when page-outs stop for it.
//!
//! In: each [`Pressure`], demotions and ping-pongs. Out: the reason for which page-outs are stopped or wait, and the factor by which a policy should
//! lengthen its idle threshold. Must not: grant a move, or read a clock.
//!
//! Page-outs stop while pages that came back, with the page-outs that were in vain for them, and watching together cost more than the bound. Watching
//! alone stops none: it would cost the same without them, and the budget of page-outs (`pace.rs`) waits for it.

use std::time::Duration;

use super::pace::Short;
use super::{GovernorConfig, Pressure, Throttle};

/// Half-life of the estimates: long enough to ignore one burst, short enough to stop a wrong decision.
const HALF_LIFE: Duration = Duration::from_secs(2);
/// Half-life of the ping-pong ratio.
const MISTAKE_HALF_LIFE: Duration = Duration::from_secs(30);
/// Below this share of ping-pongs among the demotions, refaults mean that the program changed, not that idle times are too short.
const LEAST_PING_PONG: f64 = 0.05;
/// Below this part of the bound what came back is no reason to stop.
const LEAST_RETURNED: f64 = 0.25;
const PATIENCE_MAX: f64 = 32.0;
/// The back-off factor doubles and halves in this time, and no faster: the cost of a demotion shows over the next minute, so an earlier
/// reaction would use outdated information. (With a tenth of it, a load that reads even its coldest pages once a minute drove the back-off
/// factor to its limit within half a minute of the first wave of page-outs, and half of the possible savings were lost.)
const PATIENCE_DOUBLES: Duration = Duration::from_secs(60);

/// See the module's header. Costs are shares of the program's time.
#[derive(Clone, Debug)]
pub(super) struct Strain {
    /// What pages that came back cost, and what watching does.
    returned: f64,
    watched: f64,
    /// Cost of moves whose pages have not come back, in seconds.
    invested: f64,
    backoff: f64,
    demoted: f64,
    ping_pong_pages: f64,
    throttle: Option<Throttle>,
}

impl Strain {
    pub(super) fn new() -> Strain {
        Strain {
            returned: 0.0,
            watched: 0.0,
            invested: 0.0,
            backoff: 1.0,
            demoted: 0.0,
            ping_pong_pages: 0.0,
            throttle: None,
        }
    }

    /// A page was demoted.
    pub(super) fn on_demoted(&mut self) {
        self.demoted += 1.0;
    }

    /// A page came back too soon.
    pub(super) fn on_ping_pong(&mut self) {
        self.ping_pong_pages += 1.0;
    }

    /// Takes the cost of a stretch of time; `short` says for what page-outs waited in it.
    pub(super) fn on_pressure(&mut self, pressure: &Pressure, config: &GovernorConfig, short: Option<Short>) {
        let seconds = pressure.window.as_secs_f64();
        // A program's time is that of all its cores.
        let time = seconds * pressure.cores.max(1.0);
        let cost = pressure.refaults as f64 * config.refault_cost.as_secs_f64() / time;
        // Pressure-stall information counts waits of any cause, so it may only raise the estimate while pages refault.
        let cost = match pressure.stall_share {
            Some(share) if pressure.refaults > 0 => cost.max(share.min(2.0 * cost)),
            _ => cost,
        };
        let keep = 0.5f64.powf(seconds / HALF_LIFE.as_secs_f64());
        let returned = cost + self.wasted(pressure) / time;
        self.returned = self.returned * keep + returned * (1.0 - keep);
        self.watched = self.watched * keep + pressure.watching.as_secs_f64() / time * (1.0 - keep);

        let keep = 0.5f64.powf(seconds / MISTAKE_HALF_LIFE.as_secs_f64());
        // The budget is there to be used: a longer wait than half of it requires would keep cold pages without benefit.
        // While page-outs are stopped, refaults result from earlier decisions and say nothing about the current back-off factor.
        let step = seconds / PATIENCE_DOUBLES.as_secs_f64();
        let acting = self.throttle != Some(Throttle::Refaults);
        if acting && self.ping_pong_ratio() > LEAST_PING_PONG && self.share() > config.max_slowdown / 2.0 {
            self.backoff = (self.backoff * 2f64.powf(step)).min(PATIENCE_MAX);
        } else if self.share() < config.max_slowdown / 4.0 {
            self.backoff = (self.backoff * 0.5f64.powf(step)).max(1.0);
        }
        self.demoted *= keep;
        self.ping_pong_pages *= keep;

        let incompressible = pressure.compression.is_some_and(|ratio| ratio < config.least_compression);
        let comes_back = self.returned > config.max_slowdown * LEAST_RETURNED;
        let resumes_at = if acting { 1.0 } else { 0.5 };
        self.throttle = if comes_back && self.share() > config.max_slowdown * resumes_at {
            Some(Throttle::Refaults)
        } else if incompressible {
            Some(Throttle::Compression)
        } else {
            match short {
                // What came back is paid for already; until it is earned again page-outs only wait.
                Some(Short::Refaults | Short::Moves) => Some(Throttle::Moves),
                Some(Short::Watching) => Some(Throttle::Watching),
                None => None,
            }
        };
    }

    /// The cost of page-outs that were in vain, in seconds: of pages that came back. All others are paid out of the budget when they are made.
    fn wasted(&mut self, pressure: &Pressure) -> f64 {
        self.invested += pressure.moving.as_secs_f64();
        let back = (pressure.refaults as f64 * pressure.page_out_cost.as_secs_f64()).min(self.invested);
        self.invested -= back;
        back
    }

    /// Share of ping-pongs among the demotions of the last minute or so, 0 to 1.
    pub(super) fn ping_pong_ratio(&self) -> f64 {
        // A handful of demotions says nothing yet: 64 assumed good ones offset the first ping-pongs.
        self.ping_pong_pages / (self.demoted + 64.0)
    }

    /// The factor by which a policy should lengthen its idle threshold.
    pub(super) fn backoff(&self) -> f64 {
        self.backoff
    }

    /// Why page-outs are stopped, or wait.
    pub(super) fn throttle(&self) -> Option<Throttle> {
        self.throttle
    }

    /// What pages that came back and watching cost now, as a share of the program's time.
    pub(super) fn share(&self) -> f64 {
        self.returned + self.watched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watching_alone_stops_no_page_out_and_is_named_where_they_wait_for_it() {
        let config = GovernorConfig::default();
        let second = Duration::from_secs(1);
        let watched = Pressure { window: second, watching: Duration::from_millis(100), ..Pressure::default() };
        let mut strain = Strain::new();
        strain.on_pressure(&watched, &config, None);
        assert!(strain.share() > config.max_slowdown && strain.throttle().is_none(), "{}", strain.share());
        strain.on_pressure(&watched, &config, Some(Short::Watching));
        assert_eq!(strain.throttle(), Some(Throttle::Watching));
        // A few pages that come back are no reason; with a third of the bound by themselves they are.
        strain.on_pressure(&Pressure { refaults: 1000, ..watched }, &config, None);
        assert_eq!(strain.throttle(), None);
        (0..10).for_each(|_| strain.on_pressure(&Pressure { refaults: 1400, ..watched }, &config, None));
        assert_eq!(strain.throttle(), Some(Throttle::Refaults));
    }
}
