//! Silo under a TPC-C-like mix: new orders, payments, deliveries and queries over warehouses.
//!
//! Source: TPC-C specification 5.11 for tables, cardinalities and the mix (45 % new-order, 43 % payment, 4 % each of
//! order-status, delivery, stock-level; 1 % of new orders roll back); Silo (SOSP 2013), HeMem (SOSP 2021). A warehouse
//! has 10 districts, 30,000 customers, 100,000 stock records, 30,000 orders; below about two warehouses the
//! cardinalities shrink together with the size. Records are padded to the specification's row sizes. Orders lie in a
//! ring for each district, so that the footprint stays; a new order that meets an undelivered one gives up.
//! Allocation: one heap of records and index. Phases: "load" (table by table, keys in order), "run" (all threads; others
//! take their turn between the reads of a transaction), "verify". Check: money is conserved (warehouses, districts and
//! customers against the payments and deliveries committed), goods are (stock against order lines), orders are
//! numbered without a gap, and every order adds up.

use super::silo_engine::{Database, INDEX_BYTES, Refused, Transaction};
use crate::memory::{Lane, Memory};
use crate::program::{Answer, AuditError, Program, Settings, WorkloadError, WorkloadInfo, check, wrong};
use crate::random::{Random, mix};
use crate::service::{Budget, serve_steps};

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "silo-tpcc",
    description: "Silo-like transactions under a TPC-C-like mix",
    source: "TPC-C 5.11; Silo, SOSP 2013; used by HeMem",
    operation: "transactions",
    open_ended: true,
    options: &[],
    build: |settings| Ok(Box::new(Tpcc::new(settings)?)),
};

const WAREHOUSE: u64 = 1;
const DISTRICT: u64 = 2;
const CUSTOMER: u64 = 3;
const STOCK: u64 = 4;
const ITEM: u64 = 5;
const ORDER: u64 = 6;
/// Words of each table's records, to the row sizes of TPC-C clause 1.2 (89, 95, 655, 306, 82 bytes; an order with
/// its new-order row and 15 order lines of 54 bytes has 842).
const WORDS: [usize; 7] = [0, 11, 12, 82, 38, 10, ORDER_LINES_AT + 15 * LINE_WORDS];
const DISTRICTS: u64 = 10;
/// An order: number, customer, carrier, lines, amount; then item, supplying warehouse, quantity, amount, delivery, and
/// two words of district information for each line.
const ORDER_LINES_AT: usize = 5;
const LINE_WORDS: usize = 7;
/// Orders a district starts with that are not delivered: 900 of 3,000.
const UNDELIVERED: f64 = 0.3;

struct Tpcc {
    warehouses: u64,
    /// Customers and ring slots of a district, stock records of a warehouse; items are as many.
    customers: u64,
    ring: u64,
    items: u64,
    bytes: u64,
    budget: Budget,
    seed: u64,
}

/// Bytes of a table's record with its index entry.
fn record_bytes(table: u64) -> f64 {
    ((WORDS[table as usize] + 1) * 8) as f64 + INDEX_BYTES as f64
}

impl Tpcc {
    fn new(settings: &Settings<'_>) -> Result<Tpcc, WorkloadError> {
        let a_warehouse = 30_000.0 * (record_bytes(CUSTOMER) + record_bytes(ORDER))
            + 100_000.0 * record_bytes(STOCK)
            + 10.0 * record_bytes(DISTRICT);
        let items = 100_000.0 * record_bytes(ITEM);
        let size = settings.size() as f64;
        let warehouses = ((size - items) / a_warehouse).floor().max(2.0);
        // What is left over, or lacking, is spread over the cardinalities.
        let scale = size / (warehouses * a_warehouse + items);
        let scaled = |count: f64| ((count * scale) as u64).max(20);
        Ok(Tpcc {
            warehouses: warehouses as u64,
            customers: scaled(3000.0),
            ring: scaled(3000.0),
            items: scaled(100_000.0),
            bytes: settings.size() + settings.size() / 8,
            budget: Budget::of(settings, (settings.size() / 2048).max(2000)),
            seed: settings.seed(),
        })
    }
}

fn key(table: u64, number: u64) -> u64 {
    (table << 56) | number
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

/// A transaction's own draw, from its random numbers; it starts over with the same.
#[derive(Clone, Debug)]
struct Order {
    kind: Kind,
    warehouse: u64,
    district: u64,
    customer: u64,
    amount: u64,
    lines: Vec<(u64, u64, u64)>,
    rolls_back: bool,
}

/// What the committed transactions of a thread did, for the check.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    new_orders: u64,
    quantity: u64,
    paid: u64,
    payments: u64,
    delivered: u64,
    delivered_amount: u64,
    commits: u64,
    conflicts: u64,
    gave_up: u64,
    wrong: u64,
}

struct Terminal {
    random: Random,
    transaction: Transaction,
    order: Option<Order>,
    /// Records read so far: address and words.
    seen: Vec<(usize, Vec<u64>)>,
    done: Done,
}

/// What a transaction does next.
enum Next {
    Read(u64, u64),
    Commit,
    GiveUp,
    Wrong,
}

impl Tpcc {
    fn district_key(&self, warehouse: u64, district: u64) -> u64 {
        key(DISTRICT, warehouse * DISTRICTS + district)
    }

    fn customer_key(&self, warehouse: u64, district: u64, customer: u64) -> u64 {
        key(CUSTOMER, (warehouse * DISTRICTS + district) * self.customers + customer)
    }

    fn order_key(&self, warehouse: u64, district: u64, number: u64) -> u64 {
        key(ORDER, (warehouse * DISTRICTS + district) * self.ring + number % self.ring)
    }

    fn stock_key(&self, warehouse: u64, item: u64) -> u64 {
        key(STOCK, warehouse * self.items + item)
    }

    fn price(&self, item: u64) -> u64 {
        100 + mix(self.seed ^ item) % 9900
    }

    fn load<L: Lane>(&self, lane: &mut L, database: &mut Database) -> bool {
        let filler = |number: u64, word: usize| mix(self.seed ^ number ^ ((word as u64) << 48));
        let undelivered = ((self.ring as f64 * UNDELIVERED) as u64).max(1);
        let mut all = true;
        for warehouse in 0..self.warehouses {
            let fields = [0, warehouse % 20];
            all &= database.load(lane, key(WAREHOUSE, warehouse), WORDS[WAREHOUSE as usize], |word| {
                fields.get(word).copied().unwrap_or_else(|| filler(warehouse, word))
            });
        }
        for district in 0..self.warehouses * DISTRICTS {
            // Money taken, next order, oldest undelivered order.
            let fields = [0, self.ring, self.ring - undelivered];
            all &= database.load(lane, key(DISTRICT, district), WORDS[DISTRICT as usize], |word| {
                fields.get(word).copied().unwrap_or_else(|| filler(district, word))
            });
        }
        for customer in 0..self.warehouses * DISTRICTS * self.customers {
            // Balance, paid in all, payments, deliveries.
            all &= database.load(lane, key(CUSTOMER, customer), WORDS[CUSTOMER as usize], |word| {
                if word < 4 { 0 } else { filler(customer, word) }
            });
        }
        for stock in 0..self.warehouses * self.items {
            // Quantity, sold in all, orders, remote orders.
            let fields = [10 + stock % 91, 0, 0, 0];
            all &= database.load(lane, key(STOCK, stock), WORDS[STOCK as usize], |word| {
                fields.get(word).copied().unwrap_or_else(|| filler(stock, word))
            });
        }
        for item in 0..self.items {
            let price = self.price(item);
            all &= database.load(lane, key(ITEM, item), WORDS[ITEM as usize], |word| {
                if word == 0 { price } else { filler(item, word) }
            });
        }
        for slot in 0..self.warehouses * DISTRICTS * self.ring {
            let number = slot % self.ring;
            let customer = mix(self.seed ^ !slot) % self.customers;
            let delivered = u64::from(number < self.ring - undelivered);
            // One line, of an item at its price.
            let item = mix(slot) % self.items;
            let price = self.price(item);
            let fields = [number, customer, delivered, 1, price, item, slot / self.ring / DISTRICTS, 1, price];
            all &= database
                .load(lane, key(ORDER, slot), WORDS[ORDER as usize], |word| fields.get(word).copied().unwrap_or(0));
        }
        all
    }

    fn draw(&self, random: &mut Random, home: u64) -> Order {
        let kind = match random.below(100) {
            0..45 => Kind::NewOrder,
            45..88 => Kind::Payment,
            88..92 => Kind::OrderStatus,
            92..96 => Kind::Delivery,
            _ => Kind::StockLevel,
        };
        // The specification's non-uniform customers and items: an OR of two draws favours numbers with many ones.
        let uneven = |random: &mut Random, spread: u64, count: u64| {
            (random.below(spread) | random.below(count)).wrapping_add(1) % count
        };
        let mut lines: Vec<(u64, u64, u64)> = Vec::new();
        if kind == Kind::NewOrder {
            for _ in 0..5 + random.below(11) {
                let item = uneven(random, 8192, self.items);
                // One line in a hundred is supplied by another warehouse.
                let supply = if random.below(100) == 0 { random.below(self.warehouses) } else { home };
                if lines.iter().all(|line| line.0 != item) {
                    lines.push((item, supply, 1 + random.below(10)));
                }
            }
        }
        Order {
            kind,
            warehouse: home,
            district: random.below(DISTRICTS),
            customer: uneven(random, 1024, self.customers),
            amount: 100 + random.below(500_000),
            lines,
            rolls_back: random.below(100) == 0,
        }
    }

    /// What comes after the records seen so far.
    fn next(&self, order: &Order, seen: &[(usize, Vec<u64>)]) -> Next {
        let (home, district) = (order.warehouse, order.district);
        let read = |key: u64| Next::Read(key, key >> 56);
        match (order.kind, seen.len()) {
            (Kind::NewOrder | Kind::Payment, 0) => read(key(WAREHOUSE, home)),
            (Kind::NewOrder | Kind::Payment, 1) => read(self.district_key(home, district)),
            (Kind::NewOrder | Kind::Payment, 2) => read(self.customer_key(home, district, order.customer)),
            (Kind::Payment, _) => Next::Commit,
            (Kind::NewOrder, 3) => {
                let (next, oldest) = (seen[1].1[1], seen[1].1[2]);
                if next - oldest.min(next) >= self.ring {
                    Next::GiveUp
                } else {
                    read(self.order_key(home, district, next))
                }
            }
            (Kind::NewOrder, at) => match order.lines.get((at - 4) / 2) {
                None if order.rolls_back => Next::GiveUp,
                None => Next::Commit,
                Some((item, _, _)) if at % 2 == 0 => read(key(ITEM, *item)),
                Some((item, supply, _)) => read(self.stock_key(*supply, *item)),
            },
            (Kind::OrderStatus, 0) => read(self.customer_key(home, district, order.customer)),
            (Kind::OrderStatus, 1) => read(self.district_key(home, district)),
            (Kind::OrderStatus, 2) => read(self.order_key(home, district, seen[1].1[1] + self.ring - 1)),
            // The last order must be there under its number.
            (Kind::OrderStatus, _) if seen[2].1[0] + 1 == seen[1].1[1] => Next::Commit,
            (Kind::OrderStatus, _) => Next::Wrong,
            (Kind::Delivery, at) => {
                // Ten districts, each: district, its oldest undelivered order, that order's customer.
                let (district, part) = ((at / 3) as u64, at % 3);
                match part {
                    0 if district == DISTRICTS => Next::Commit,
                    0 => read(self.district_key(home, district)),
                    1 => read(self.order_key(home, district, seen[at - 1].1[2])),
                    _ => read(self.customer_key(home, district, seen[at - 1].1[1] % self.customers)),
                }
            }
            (Kind::StockLevel, 0) => read(self.district_key(home, district)),
            (Kind::StockLevel, at) => {
                // The last 20 orders, each followed by the stock of its first line.
                let (number, stock) = ((at as u64 - 1) / 2, at % 2 == 0);
                if number >= 20.min(self.ring) {
                    Next::Commit
                } else if stock {
                    read(self.stock_key(home, seen[at - 1].1[ORDER_LINES_AT] % self.items))
                } else {
                    read(self.order_key(home, district, seen[0].1[1] + self.ring - 1 - number))
                }
            }
        }
    }

    /// The writes of a transaction that has read all it needs, and what it adds to the thread's account.
    fn write(&self, order: &Order, seen: &[(usize, Vec<u64>)], transaction: &mut Transaction, done: &mut Done) {
        match order.kind {
            Kind::NewOrder => {
                let number = seen[1].1[1];
                transaction.write(seen[1].0, 1, number + 1);
                let slot = seen[3].0;
                let (mut amount, mut place) = (0u64, ORDER_LINES_AT);
                for (line, &(item, supply, quantity)) in order.lines.iter().enumerate() {
                    let price = seen[4 + 2 * line].1[0];
                    let (stock, words) = &seen[5 + 2 * line];
                    let left = words[0];
                    transaction.write(
                        *stock,
                        0,
                        if left >= quantity + 10 { left - quantity } else { left + 91 - quantity },
                    );
                    transaction.write(*stock, 1, words[1] + quantity);
                    transaction.write(*stock, 2, words[2] + 1);
                    if supply != order.warehouse {
                        transaction.write(*stock, 3, words[3] + 1);
                    }
                    for (word, value) in [item, supply, quantity, price * quantity, 0].into_iter().enumerate() {
                        transaction.write(slot, place + word, value);
                    }
                    amount += price * quantity;
                    place += LINE_WORDS;
                    done.quantity += quantity;
                }
                let head = [number, order.customer, 0, order.lines.len() as u64, amount];
                for (word, value) in head.into_iter().enumerate() {
                    transaction.write(slot, word, value);
                }
                done.new_orders += 1;
            }
            Kind::Payment => {
                transaction.write(seen[0].0, 0, seen[0].1[0] + order.amount);
                transaction.write(seen[1].0, 0, seen[1].1[0] + order.amount);
                let (customer, words) = &seen[2];
                transaction.write(*customer, 0, words[0].wrapping_sub(order.amount));
                transaction.write(*customer, 1, words[1] + order.amount);
                transaction.write(*customer, 2, words[2] + 1);
                done.paid += order.amount;
                done.payments += 1;
            }
            Kind::Delivery => {
                for read in seen.chunks_exact(3) {
                    let [(district, d), (slot, o), (customer, c)] = read else { continue };
                    // A district whose orders are all delivered is passed over.
                    if d[2] >= d[1] {
                        continue;
                    }
                    transaction.write(*district, 2, d[2] + 1);
                    transaction.write(*slot, 2, 1 + order.amount % 10);
                    transaction.write(*customer, 0, c[0].wrapping_add(o[4]));
                    transaction.write(*customer, 3, c[3] + 1);
                    done.delivered += 1;
                    done.delivered_amount = done.delivered_amount.wrapping_add(o[4]);
                    done.wrong += u64::from(o[0] != d[2]);
                }
            }
            Kind::OrderStatus | Kind::StockLevel => {}
        }
    }

    /// One step of a terminal; how many transactions it completed.
    fn step<L: Lane>(&self, lane: &mut L, database: &Database, terminal: &mut Terminal) -> u64 {
        let home = lane.thread() as u64 % self.warehouses;
        let order = match terminal.order.take() {
            Some(order) => order,
            None => {
                terminal.transaction.clear();
                terminal.seen.clear();
                self.draw(&mut terminal.random, home)
            }
        };
        lane.compute(50);
        match self.next(&order, &terminal.seen) {
            Next::Read(key, table) => {
                let mut words = Vec::new();
                let whole = WORDS[table as usize];
                match database.read(lane, &mut terminal.transaction, key, whole, &mut words) {
                    Ok(record) => terminal.seen.push((record, words)),
                    Err(Refused::Conflict) => {
                        terminal.done.conflicts += 1;
                        terminal.transaction.clear();
                        terminal.seen.clear();
                    }
                    Err(Refused::Missing) => {
                        terminal.done.wrong += 1;
                        return 1;
                    }
                }
                terminal.order = Some(order);
                0
            }
            Next::Commit => {
                let mut done = terminal.done;
                self.write(&order, &terminal.seen, &mut terminal.transaction, &mut done);
                if database.commit(lane, &mut terminal.transaction).is_ok() {
                    terminal.done = done;
                    terminal.done.commits += 1;
                    return 1;
                }
                terminal.done.conflicts += 1;
                terminal.transaction.clear();
                terminal.seen.clear();
                terminal.order = Some(order);
                0
            }
            Next::GiveUp => {
                terminal.done.gave_up += 1;
                1
            }
            // Only a transaction whose reads were all of one moment can tell that something is wrong.
            Next::Wrong => {
                if database.commit(lane, &mut terminal.transaction).is_ok() {
                    terminal.done.wrong += 1;
                    return 1;
                }
                terminal.done.conflicts += 1;
                terminal.transaction.clear();
                terminal.seen.clear();
                terminal.order = Some(order);
                0
            }
        }
    }

    fn audit(&self, database: &Database, done: &Done) -> Result<u64, AuditError> {
        let (mut at_warehouses, mut at_districts, mut paid, mut payments) = (0u64, 0u64, 0u64, 0u64);
        let (mut balance, mut deliveries, mut sold, mut orders, mut delivered) = (0u64, 0u64, 0u64, 0u64, 0u64);
        let undelivered = ((self.ring as f64 * UNDELIVERED) as u64).max(1);
        let mut checksum = 0u64;
        database.audit(|key, peek| {
            let number = key & ((1 << 56) - 1);
            match key >> 56 {
                WAREHOUSE => at_warehouses += peek(0),
                DISTRICT => {
                    at_districts += peek(0);
                    orders += peek(1) - self.ring.min(peek(1));
                    delivered += peek(2) - (self.ring - undelivered).min(peek(2));
                }
                CUSTOMER => {
                    balance = balance.wrapping_add(peek(0));
                    paid += peek(1);
                    payments += peek(2);
                    deliveries += peek(3);
                }
                STOCK => sold += peek(1),
                ITEM if peek(0) != self.price(number) => {
                    return Err(AuditError(format!("item {number} costs {}", peek(0))));
                }
                ORDER => {
                    let lines = peek(3) as usize;
                    let total: u64 = (0..lines.min(15)).map(|line| peek(ORDER_LINES_AT + line * LINE_WORDS + 3)).sum();
                    if peek(0) % self.ring != number % self.ring || lines == 0 || lines > 15 || total != peek(4) {
                        return Err(AuditError(format!("order {} in ring place {number} does not add up", peek(0))));
                    }
                }
                _ => {}
            }
            checksum = mix(checksum ^ key ^ peek(0) ^ peek(1).rotate_left(20));
            Ok(())
        })?;
        let equal = [
            ("money at the warehouses and paid", at_warehouses, done.paid),
            ("money at the districts and paid", at_districts, done.paid),
            ("money of the customers and paid", paid, done.paid),
            ("payments of the customers and made", payments, done.payments),
            ("balances and deliveries less payments", balance, done.delivered_amount.wrapping_sub(done.paid)),
            ("deliveries of the customers and made", deliveries, done.delivered),
            ("deliveries of the districts and made", delivered, done.delivered),
            ("orders of the districts and made", orders, done.new_orders),
            ("goods sold and ordered", sold, done.quantity),
        ];
        match equal.iter().find(|(_, found, expected)| found != expected) {
            Some((what, found, expected)) => Err(AuditError(format!("{what} differ: {found} and {expected}"))),
            None => Ok(checksum),
        }
    }
}

impl Program for Tpcc {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("load");
        let room = || wrong(INFO.name, "the tables and their index do not fit the heap made for them");
        let mut database = Database::new(memory, self.bytes).ok_or_else(room)?;
        if !self.load(memory.main(), &mut database) {
            return Err(room());
        }
        memory.phase("run");
        let mut terminals: Vec<Terminal> = (0..memory.threads())
            .map(|thread| Terminal {
                random: Random::new(self.seed, thread as u64),
                transaction: Transaction::default(),
                order: None,
                seen: Vec::new(),
                done: Done::default(),
            })
            .collect();
        let database = &database;
        let operations =
            serve_steps(memory, self.budget, &mut terminals, 4, |lane, terminal| self.step(lane, database, terminal));

        memory.phase("verify");
        let mut done = Done::default();
        for part in terminals.iter().map(|terminal| terminal.done) {
            done.new_orders += part.new_orders;
            done.quantity += part.quantity;
            done.paid += part.paid;
            done.payments += part.payments;
            done.delivered += part.delivered;
            done.delivered_amount = done.delivered_amount.wrapping_add(part.delivered_amount);
            done.commits += part.commits;
            done.conflicts += part.conflicts;
            done.gave_up += part.gave_up;
            done.wrong += part.wrong;
        }
        check(INFO.name, done.wrong == 0, || format!("{} transactions met a record that cannot be", done.wrong))?;
        let checksum = self.audit(database, &done).map_err(|error| error.of(INFO.name))?;
        let figures = vec![
            ("warehouses", self.warehouses as f64),
            ("commits", done.commits as f64),
            ("new orders", done.new_orders as f64),
            ("conflicts", done.conflicts as f64),
            ("rolled back", done.gave_up as f64),
        ];
        let verified = "money and goods are conserved, and every order adds up";
        Ok(Answer { operations, checksum, verified, figures })
    }
}
