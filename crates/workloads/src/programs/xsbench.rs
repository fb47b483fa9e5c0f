//! XSBench-like lookups of macroscopic neutron cross sections on a unionised energy grid.
//!
//! Source: Tramm et al., "XSBench" (PHYSOR 2014): 355 nuclides (68 in its small form), 12 materials with its
//! probabilities, five cross sections; MEMTIS runs 130,000 grid points a nuclide (63 GB), Tuna 16.4 GB. Allocation:
//! nuclide grids (energy and five cross sections a point), union energies, union indices (for each union energy, the
//! place in every nuclide's grid: most of the memory). Phases: "generate", "run" (an energy and a material are drawn;
//! binary search in the union, then two grid points of each of the material's nuclides), "verify". Check: each thread's
//! sum of a sample of its lookups is that of a direct computation which searches every nuclide's own grid, and the union
//! energies are in order.

use crate::memory::{Array, Lane, Memory};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo, check};
use crate::random::{Random, mix, unit};
use crate::service::{Budget, serve};

/// Words of a nuclide's grid point: energy, total, elastic, absorption, fission, nu-fission.
const POINT_WORDS: usize = 6;
const SECTIONS: usize = 5;
/// Chance of each material, and its nuclides in the large problem (the small one has 34 in the fuel).
const MATERIALS: [(f64, usize); 12] = [
    (0.140, 321),
    (0.052, 5),
    (0.275, 4),
    (0.134, 4),
    (0.154, 27),
    (0.064, 21),
    (0.066, 21),
    (0.055, 21),
    (0.008, 21),
    (0.015, 21),
    (0.025, 9),
    (0.013, 9),
];
/// One lookup in this many is computed a second time, directly.
const SAMPLE: u64 = 64;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "xsbench",
    description: "neutron cross-section lookups on a unionised energy grid",
    source: "XSBench, PHYSOR 2014; used by MEMTIS, Tuna",
    operation: "lookups",
    open_ended: true,
    options: &[("nuclides", "68 or 355; 0 chooses 355 from 64 MiB on (0)")],
    build: |settings| Ok(Box::new(CrossSections::new(settings)?)),
};

struct CrossSections {
    nuclides: usize,
    points: usize,
    budget: Budget,
    seed: u64,
}

impl CrossSections {
    fn new(settings: &Settings<'_>) -> Result<CrossSections, WorkloadError> {
        let nuclides = match settings.option("nuclides", 0usize, "0, 68 or 355", |n| [0, 68, 355].contains(&n))? {
            0 if settings.size() < 64 << 20 => 68,
            0 => 355,
            chosen => chosen,
        };
        let bytes_a_point = (nuclides * (POINT_WORDS * 8 + 8 + nuclides * 4)) as u64;
        Ok(CrossSections {
            nuclides,
            points: (settings.size() / bytes_a_point).max(2) as usize,
            budget: Budget::of(settings, (settings.size() / 4096).max(2000)),
            seed: settings.seed(),
        })
    }

    fn materials(&self) -> Vec<Vec<(usize, f64)>> {
        let mut random = Random::new(self.seed, 77);
        MATERIALS
            .iter()
            .enumerate()
            .map(|(material, &(_, nuclides))| {
                let count = if material == 0 && self.nuclides == 68 { 34 } else { nuclides };
                // The fuel's nuclides are the first ones, as in XSBench; other materials draw theirs.
                (0..count)
                    .map(|n| {
                        let nuclide = if material == 0 { n } else { random.below(self.nuclides as u64) as usize };
                        (nuclide, random.unit())
                    })
                    .collect()
            })
            .collect()
    }
}

struct Grids {
    nuclide: Array<f64>,
    union: Array<f64>,
    indices: Array<u32>,
    nuclides: usize,
    points: usize,
}

impl Grids {
    fn word(&self, nuclide: usize, point: usize) -> usize {
        (nuclide * self.points + point) * POINT_WORDS
    }

    fn generate<M: Memory>(&self, memory: &mut M, seed: u64) {
        let mut states = vec![(); memory.threads()];
        memory.parallel_with(&mut states, self.nuclides, 1, crate::memory::Schedule::Blocks, |lane, (), range| {
            for nuclide in range {
                for point in 0..self.points {
                    let word = self.word(nuclide, point);
                    self.nuclide.write_span(lane, word..word + POINT_WORDS, |index| {
                        let draw = unit(mix(seed ^ index as u64));
                        // Energies in order without a sort: one in each of as many equal parts.
                        if index == word { (point as f64 + draw) / self.points as f64 } else { draw }
                    });
                    lane.compute(40);
                }
            }
        });
        // The union by a merge: the heap of one candidate a nuclide is small and stays in the cache, so it is not seen.
        let lane = memory.main();
        let mut heap: std::collections::BinaryHeap<std::cmp::Reverse<(u64, usize)>> = (0..self.nuclides)
            .map(|nuclide| std::cmp::Reverse((self.nuclide.get(lane, self.word(nuclide, 0)).to_bits(), nuclide)))
            .collect();
        let mut places = vec![0u32; self.nuclides];
        let mut next = vec![0usize; self.nuclides];
        let mut at = 0;
        // Bits of positive floats are in the order of the floats.
        while let Some(std::cmp::Reverse((energy, nuclide))) = heap.pop() {
            self.union.set(lane, at, f64::from_bits(energy));
            // The last grid point at or below the energy, but never the very last: two are interpolated.
            places[nuclide] = (next[nuclide].min(self.points - 2)) as u32;
            let start = at * self.nuclides;
            self.indices.write_span(lane, start..start + self.nuclides, |index| places[index - start]);
            lane.compute(30);
            next[nuclide] += 1;
            if next[nuclide] < self.points {
                let energy = self.nuclide.get(lane, self.word(nuclide, next[nuclide]));
                heap.push(std::cmp::Reverse((energy.to_bits(), nuclide)));
            }
            at += 1;
        }
    }

    /// Macroscopic cross sections of a material at an energy, through the union grid.
    fn lookup<L: Lane>(&self, lane: &mut L, energy: f64, material: &[(usize, f64)]) -> [f64; SECTIONS] {
        let (mut low, mut high) = (0usize, self.union.len());
        while high - low > 1 {
            let middle = (low + high) / 2;
            lane.compute(3);
            if self.union.chase(lane, middle) <= energy {
                low = middle;
            } else {
                high = middle;
            }
        }
        let mut sums = [0.0; SECTIONS];
        for &(nuclide, density) in material {
            let place = self.indices.get(lane, low * self.nuclides + nuclide) as usize;
            let word = self.word(nuclide, place.min(self.points - 2));
            let mut two = [0.0; 2 * POINT_WORDS];
            let mut filled = 0;
            self.nuclide.read_span(lane, word..word + 2 * POINT_WORDS, |value| {
                two[filled] = value;
                filled += 1;
            });
            lane.compute(20);
            interpolate(energy, &two, density, &mut sums);
        }
        sums
    }

    /// The same without the union: a search in each nuclide's grid, unseen.
    fn direct(&self, energy: f64, material: &[(usize, f64)]) -> [f64; SECTIONS] {
        let mut sums = [0.0; SECTIONS];
        // The union's first energy stands for all below it, as the binary search has it.
        let from = energy.max(self.union.peek(0));
        for &(nuclide, density) in material {
            let above = (0..self.points).take_while(|&p| self.nuclide.peek(self.word(nuclide, p)) <= from).count();
            let word = self.word(nuclide, above.saturating_sub(1).min(self.points - 2));
            let two = std::array::from_fn(|offset| self.nuclide.peek(word + offset));
            interpolate(energy, &two, density, &mut sums);
        }
        sums
    }
}

fn interpolate(energy: f64, two: &[f64; 2 * POINT_WORDS], density: f64, sums: &mut [f64; SECTIONS]) {
    let share = (two[POINT_WORDS] - energy) / (two[POINT_WORDS] - two[0]);
    for section in 0..SECTIONS {
        let (low, high) = (two[1 + section], two[POINT_WORDS + 1 + section]);
        sums[section] += density * (high - share * (high - low));
    }
}

struct Particle {
    random: Random,
    number: u64,
    checksum: u64,
    wrong: u64,
}

impl Program for CrossSections {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("generate");
        let union = self.nuclides * self.points;
        let grids = Grids {
            nuclide: memory.allocate("nuclide grids", union * POINT_WORDS),
            union: memory.allocate("union energies", union),
            indices: memory.allocate("union indices", union * self.nuclides),
            nuclides: self.nuclides,
            points: self.points,
        };
        grids.generate(memory, self.seed);
        let materials = self.materials();

        memory.phase("run");
        let mut particles: Vec<Particle> = (0..memory.threads())
            .map(|t| Particle { random: Random::new(self.seed, t as u64), number: 0, checksum: 0, wrong: 0 })
            .collect();
        let grids = &grids;
        let operations = serve(memory, self.budget, &mut particles, 1, |lane, particle| {
            let energy = particle.random.unit();
            let mut draw = particle.random.unit();
            let drawn = MATERIALS.iter().position(|(chance, _)| {
                draw -= chance;
                draw < 0.0
            });
            let material = &materials[drawn.unwrap_or(0)];
            let sums = grids.lookup(lane, energy, material);
            lane.compute(50);
            particle.checksum = mix(particle.checksum ^ sums.iter().fold(0, |sum, s| sum ^ s.to_bits().rotate_left(7)));
            if particle.number % SAMPLE == 0 {
                particle.wrong += u64::from(sums != grids.direct(energy, material));
            }
            particle.number += 1;
        });

        memory.phase("verify");
        let wrong: u64 = particles.iter().map(|particle| particle.wrong).sum();
        check(INFO.name, wrong == 0, || format!("{wrong} sampled lookups differ from the direct computation"))?;
        let mut last = 0.0;
        for at in 0..union {
            let energy = grids.union.peek(at);
            check(INFO.name, energy >= last, || format!("union energy {at} is below the one before"))?;
            last = energy;
        }
        for nuclide in 0..self.nuclides {
            for index in grids.word(nuclide, 0)..grids.word(nuclide, self.points) {
                let draw = unit(mix(self.seed ^ index as u64));
                let point = index / POINT_WORDS % self.points;
                let expected = if index % POINT_WORDS == 0 { (point as f64 + draw) / self.points as f64 } else { draw };
                check(INFO.name, grids.nuclide.peek(index) == expected, || {
                    format!("grid point {point} of nuclide {nuclide} has changed")
                })?;
            }
        }
        let checksum = particles.iter().fold(0u64, |sum, particle| sum.rotate_left(3) ^ particle.checksum);
        let figures = vec![("nuclides", self.nuclides as f64), ("points a nuclide", self.points as f64)];
        let verified = "a sample of the lookups against direct searches, and both grids";
        Ok(Answer { operations, checksum, verified, figures })
    }
}
