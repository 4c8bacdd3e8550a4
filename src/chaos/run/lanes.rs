//! Plays the schedule: four lanes side by side, each step to its end.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::ChaosPlant;
use super::kind::Lane;
use super::schedule::{Fault, Step};
use super::stage::{Seen, Stage};
use crate::chaos::{DiskAction, HarnessError};

/// A run goes on for so much longer at most until every chosen kind has happened: a slow machine needs more time for a round.
const LONGER: Duration = Duration::from_secs(120);

impl Stage<'_> {
    /// Plays all lanes until the time is over, and every chosen kind was seen to happen or too much more time has passed.
    pub(super) async fn play(&self) -> Result<(), HarnessError> {
        let [processes, links, surroundings, members] = Lane::ALL.map(|lane| self.lane(lane));
        // Each is large: they live on the heap.
        tokio::try_join!(
            Box::pin(processes),
            Box::pin(links),
            Box::pin(surroundings),
            Box::pin(members),
        )?;
        Ok(())
    }

    async fn lane(&self, lane: Lane) -> Result<(), HarnessError> {
        for step in self.plan.schedule.lane(lane) {
            if self.is_over(lane) {
                break;
            }
            sleep(step.pause).await;
            self.coverage.borrow_mut().tried(step.kind);
            let seen = match self.plan.plant {
                ChaosPlant::Idle => Seen::Not("it was planted that nothing happens".to_owned()),
                _ => self.strike(step).await?,
            };
            match seen {
                Seen::Happened => self.coverage.borrow_mut().happened(step.kind),
                Seen::Not(why) => self.say(format_args!("{} did not happen: {why}", step.kind)),
            }
        }
        Ok(())
    }

    fn is_over(&self, lane: Lane) -> bool {
        let end = self.started + self.plan.schedule.duration;
        let is_missing = self.missing().iter().any(|kind| kind.lane() == lane);
        let longer = if is_missing && self.plan.plant != ChaosPlant::Idle {
            LONGER
        } else {
            Duration::ZERO
        };
        end + longer <= Instant::now()
    }

    async fn strike(&self, Step { fault, lasts, .. }: Step) -> Result<Seen, HarnessError> {
        // It takes the whole cluster for itself.
        if let Fault::OldDirectory(victim, way_out) = fault {
            return self.old_directory(victim, way_out).await;
        }
        let _with_others = self.quiet.read().await;
        match fault {
            Fault::Kill(victim) => self.kill(victim, lasts).await,
            Fault::KillAll => self.kill_all(lasts).await,
            Fault::Terminate(victim) => self.terminate(victim, lasts).await,
            Fault::FailingSync(victim, call, nth) => {
                self.failing_sync(victim, (call, nth), lasts).await
            }
            Fault::FullDisk(victim) => self.full_disk(victim, lasts).await,
            Fault::OldDirectory(victim, way_out) => self.old_directory(victim, way_out).await,
            Fault::Harm(victim, harm) => self.harm(victim, harm).await,
            Fault::Links(scope, fault) => self.links((scope, fault), lasts).await,
            Fault::LostReplies(every) => self.lost_replies(every, lasts).await,
            Fault::Stop(victim) => self.stop(victim, lasts).await,
            Fault::SlowSync(victim, delay_ms) => {
                self.impede_syncs(victim, DiskAction::Slow(delay_ms), lasts)
                    .await
            }
            Fault::HungSync(victim) => self.impede_syncs(victim, DiskAction::Hang, lasts).await,
            Fault::Clock(victim, seconds) => self.clock(victim, seconds, lasts).await,
            Fault::MemberAdd => self.member_add().await,
            Fault::MemberRemove(victim) => self.member_remove(victim).await,
            Fault::MemberReplace(victim) => self.member_replace(victim).await,
            Fault::Backup(victim) => self.backup(victim).await,
            Fault::MoveLeader => self.move_leader().await,
        }
    }
}
