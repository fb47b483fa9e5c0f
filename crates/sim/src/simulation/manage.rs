//! What happens between two stretches: trackers report, the kernel reclaims, the mover answers, the engine is polled.
//!
//! In: the time that passed. Out: the calls for what is due, in the order a live manager would see it. Must not: do any of it.

use super::Simulation;

impl Simulation {
    /// Does everything that is due now.
    pub(super) fn manage(&mut self) {
        if !self.goes_on() {
            return;
        }
        let span = self.clock.take_span();
        self.settle_moves(span);
        self.copy(span);
        self.take_samples(span);
        self.background_reclaim(span);
        self.rearm_watched();
        let mut news = self.deliver();
        news |= self.answer_plan();
        news |= self.scan_if_due();
        news |= self.press();
        self.mark_if_due();
        if self.wake_if_due(news) {
            self.poll();
        }
    }
}
