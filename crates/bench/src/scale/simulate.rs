//! An event simulation of many replicas on one Postgres, in simulated time.
//!
//! The simulation covers what replicas share: the database's processors, its disk, and the load of each replica. A
//! replica writes one batch of records at a time; records that arrive meanwhile form the next batch. A disk flush makes
//! all commits durable that were waiting when it began. As in the gateway, batches therefore grow with the load.
//! Deliberately absent: the network, the gateways' processors (which grow with the number of replicas), and other work
//! of the database.

use std::collections::{BTreeMap, VecDeque};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

/// The measured costs, in seconds of one database processor unless stated otherwise.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Costs {
    /// A batch of records, regardless of its size.
    pub(crate) batch: f64,
    /// A record, for the beginning or end of a call.
    pub(crate) row: f64,
    /// The load of a replica per second without calls.
    pub(crate) idle: f64,
    /// Time until a commit is on the disk, in seconds.
    pub(crate) flush: f64,
    /// Connections of a replica under load.
    pub(crate) connections: f64,
    /// Bytes of log per call.
    pub(crate) log: f64,
    /// CPU time of the gateway per call, in seconds.
    pub(crate) gateway: f64,
}

/// An installation and its load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    pub(crate) replicas: usize,
    /// Cores of the database.
    pub(crate) cores: usize,
    /// Calls per second of all replicas.
    pub(crate) calls: f64,
    /// Duration, in simulated seconds.
    pub(crate) seconds: f64,
}

/// The results of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Utilisation of the database processors, 0 … 1.
    pub(crate) busy: f64,
    /// Utilisation of the disk, 0 … 1.
    pub(crate) disk: f64,
    /// The time that recording adds to a call, in seconds: median and 99th percentile.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Average number of records per batch.
    pub(crate) rows: f64,
    /// Share of the calls begun during the simulation that have ended.
    pub(crate) ended: f64,
}

/// Time that a server works on a call, in seconds.
const WORK_SECONDS: f64 = 0.02;
/// Maximum number of rows per statement. A larger batch costs as much as several.
const ROWS_PER_STATEMENT: usize = 64;
/// Polls per second of a replica.
const POLLS_PER_SECOND: f64 = 3.0;

#[derive(Clone, Copy, Debug)]
enum Event {
    Call(usize),
    /// The server of this replica has finished its work on the call that began at this time.
    Worked(usize, f64),
    Looks,
    Computed(Job),
    Flushed,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    Look,
    Batch(usize),
}

/// A record to be written: when its call began, and whether it is the end of the call.
#[derive(Clone, Copy, Debug)]
struct Row {
    began: f64,
    is_end: bool,
}

#[derive(Default)]
struct Replica {
    waiting: Vec<Row>,
    /// The batch in progress.
    batch: Vec<Row>,
}

struct Simulation {
    world: World,
    costs: Costs,
    random: SmallRng,
    now: f64,
    /// Planned events, ordered by time, then by the order of planning. The bits of a time are ordered like the time,
    /// since it is not negative.
    events: BTreeMap<(u64, u64), Event>,
    serial: u64,
    replicas: Vec<Replica>,
    idle_cores: usize,
    queue: VecDeque<(Job, f64)>,
    /// Batches that wait for the disk, and those that it is writing.
    unflushed: Vec<usize>,
    flushing: Vec<usize>,
    computed: f64,
    flushed: f64,
    batches: u64,
    rows: u64,
    begun: u64,
    added: Vec<f64>,
}

pub(crate) fn run(world: World, costs: Costs) -> Outcome {
    Simulation::new(world, costs).run()
}

/// The highest number of calls per second at which 99 % of calls wait at most `patience` seconds for their records.
pub(crate) fn limit(mut world: World, costs: Costs, patience: f64) -> f64 {
    let keeps = |calls: f64, world: &mut World| {
        world.calls = calls;
        let outcome = run(*world, costs);
        outcome.p99 <= patience && outcome.ended > 0.98
    };
    let (mut good, mut bad) = (0.0, 1000.0);
    while keeps(bad, &mut world) {
        good = bad;
        bad *= 2.0;
    }
    while bad - good > good.max(500.0) * 0.03 {
        let middle = f64::midpoint(good, bad);
        match keeps(middle, &mut world) {
            true => good = middle,
            false => bad = middle,
        }
    }
    good
}

impl Simulation {
    fn new(world: World, costs: Costs) -> Self {
        Self {
            world,
            costs,
            random: SmallRng::seed_from_u64(1),
            now: 0.0,
            events: BTreeMap::new(),
            serial: 0,
            replicas: (0..world.replicas).map(|_| Replica::default()).collect(),
            idle_cores: world.cores,
            queue: VecDeque::new(),
            unflushed: Vec::new(),
            flushing: Vec::new(),
            computed: 0.0,
            flushed: 0.0,
            batches: 0,
            rows: 0,
            begun: 0,
            added: Vec::new(),
        }
    }

    fn run(mut self) -> Outcome {
        for replica in 0..self.world.replicas {
            let first = self.between_calls();
            self.after(first, Event::Call(replica));
            let first = self.random.random::<f64>() / POLLS_PER_SECOND;
            self.after(first, Event::Looks);
        }
        while let Some(((at, _), event)) = self.events.pop_first() {
            if f64::from_bits(at) > self.world.seconds {
                break;
            }
            self.now = f64::from_bits(at);
            self.happens(event);
        }
        self.added.sort_unstable_by(f64::total_cmp);
        let share = |part: f64| {
            let last = self.added.len().saturating_sub(1);
            self.added
                .get((last as f64 * part) as usize)
                .copied()
                .unwrap_or(f64::INFINITY)
        };
        let seconds = self.world.seconds;
        // Calls that began in the last moments have not ended yet. They do not count as failures.
        let due = (self.begun as f64 * (1.0 - 5.0 * WORK_SECONDS / seconds)).max(1.0);
        Outcome {
            busy: self.computed / (seconds * self.world.cores as f64),
            disk: self.flushed / seconds,
            p50: share(0.5),
            p99: share(0.99),
            rows: self.rows as f64 / self.batches.max(1) as f64,
            ended: (self.added.len() as f64 / due).min(1.0),
        }
    }

    /// Calls arrive at random, with exponentially distributed intervals.
    fn between_calls(&mut self) -> f64 {
        let rate = self.world.calls / self.world.replicas as f64;
        let uniform: f64 = self.random.random();
        -(1.0 - uniform).ln() / rate.max(1e-9)
    }

    fn after(&mut self, seconds: f64, event: Event) {
        self.serial += 1;
        let at = (self.now + seconds).to_bits();
        self.events.insert((at, self.serial), event);
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Call(replica) => {
                self.begun += 1;
                self.write(replica, self.now, false);
                let next = self.between_calls();
                self.after(next, Event::Call(replica));
            }
            Event::Worked(replica, began) => self.write(replica, began, true),
            Event::Looks => {
                self.ask(Job::Look, self.costs.idle / POLLS_PER_SECOND);
                self.after(1.0 / POLLS_PER_SECOND, Event::Looks);
            }
            Event::Computed(job) => {
                self.idle_cores += 1;
                if let Job::Batch(replica) = job {
                    self.unflushed.push(replica);
                    self.flush();
                }
                self.compute();
            }
            Event::Flushed => {
                for replica in std::mem::take(&mut self.flushing) {
                    self.durable(replica);
                }
                self.flush();
            }
        }
    }

    fn write(&mut self, replica: usize, began: f64, is_end: bool) {
        self.replicas[replica].waiting.push(Row { began, is_end });
        self.begin(replica);
    }

    /// Starts the next batch of a replica, if none is in progress and records are waiting.
    fn begin(&mut self, replica: usize) {
        let of = &mut self.replicas[replica];
        if !of.batch.is_empty() || of.waiting.is_empty() {
            return;
        }
        std::mem::swap(&mut of.batch, &mut of.waiting);
        let rows = of.batch.len();
        self.batches += 1;
        self.rows += rows as u64;
        let statements = rows.div_ceil(ROWS_PER_STATEMENT) as f64;
        let cost = self.costs.batch * statements + self.costs.row * rows as f64;
        self.ask(Job::Batch(replica), cost);
    }

    fn ask(&mut self, job: Job, cost: f64) {
        self.queue.push_back((job, cost));
        self.compute();
    }

    fn compute(&mut self) {
        while self.idle_cores > 0
            && let Some((job, cost)) = self.queue.pop_front()
        {
            self.idle_cores -= 1;
            self.computed += cost;
            self.after(cost, Event::Computed(job));
        }
    }

    fn flush(&mut self) {
        if self.flushing.is_empty() && !self.unflushed.is_empty() {
            std::mem::swap(&mut self.flushing, &mut self.unflushed);
            self.flushed += self.costs.flush;
            self.after(self.costs.flush, Event::Flushed);
        }
    }

    fn durable(&mut self, replica: usize) {
        for row in std::mem::take(&mut self.replicas[replica].batch) {
            match row.is_end {
                true => self.added.push(self.now - row.began - WORK_SECONDS),
                false => self.after(WORK_SECONDS, Event::Worked(replica, row.began)),
            }
        }
        self.begin(replica);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        batch: 200e-6,
        row: 50e-6,
        idle: 1e-3,
        flush: 1e-3,
        connections: 11.0,
        log: 1000.0,
        gateway: 50e-6,
    };

    fn world(replicas: usize, calls: f64) -> World {
        World {
            replicas,
            cores: 2,
            calls,
            seconds: 5.0,
        }
    }

    #[test]
    fn a_call_alone_waits_for_two_batches() {
        let outcome = run(world(1, 5.0), COSTS);
        let alone = 2.0 * (COSTS.batch + COSTS.row + COSTS.flush);
        assert!((outcome.p50 - alone).abs() < 1e-6, "{outcome:?}");
        assert!(outcome.rows < 1.1 && outcome.ended > 0.98, "{outcome:?}");
    }

    #[test]
    fn batches_grow_with_the_load_and_the_processors_bound_it() {
        let (few, many) = (run(world(3, 200.0), COSTS), run(world(3, 10_000.0), COSTS));
        assert!(few.rows < 2.0 && many.rows > 5.0, "{few:?} {many:?}");
        let limit = limit(world(3, 0.0), COSTS, 0.1);
        // Each call writes two rows, and there are two cores.
        let bound = 2.0 / (2.0 * COSTS.row);
        assert!((bound * 0.6..bound).contains(&limit), "{limit} of {bound}");
        assert!(run(world(3, bound * 1.2), COSTS).p99 > 0.1);
    }

    #[test]
    fn replicas_that_only_look_fill_the_processors_at_last() {
        let busy = |replicas| run(world(replicas, 1.0), COSTS).busy;
        assert!(busy(10) < 0.02);
        assert!((busy(1000) - 0.5).abs() < 0.05, "{}", busy(1000));
        assert_eq!(limit(world(3000, 0.0), COSTS, 0.1), 0.0);
    }
}
