//! The runs as ratios to the best of each cell.
//!
//! Owns the aggregation. A cell's number is the mean over its seeds; the best is the rule with the
//! lowest one, the filter as it ships included and the oracle not; the interval comes from the spread of the
//! seeds' own geometric means.

use crate::grid::{Cell, Chooser, Score, SEEDS};
use crate::stats::{geometric_mean, half_interval, mean, Measures};

/// All runs, by cell and chooser.
pub struct Table {
    /// The cells.
    pub cells: Vec<Cell>,
    /// The choosers.
    pub choosers: Vec<Chooser>,
    /// `scores[cell][chooser][seed]`
    scores: Vec<Vec<Vec<Measures>>>,
}

/// A chooser against the best of each cell.
#[derive(Debug, Clone, Copy)]
pub struct Ratio {
    /// Geometric mean over the cells.
    pub mean: f64,
    /// Half of its 95 % interval.
    pub interval: f64,
    /// The worst cell.
    pub worst: f64,
    /// Which one.
    pub at: usize,
}

impl Table {
    /// Of all runs; a cell that a chooser could not finish is an error of the replayer.
    pub fn new(cells: Vec<Cell>, choosers: Vec<Chooser>, runs: &[Score]) -> Option<Self> {
        let mut scores = vec![vec![Vec::new(); choosers.len()]; cells.len()];
        for run in runs {
            let cell = cells.iter().position(|cell| *cell == run.cell)?;
            scores[cell][run.chooser].push(run.measures);
        }
        let whole = scores.iter().flatten().all(|s| s.len() == SEEDS as usize);
        whole.then_some(Self {
            cells,
            choosers,
            scores,
        })
    }

    /// Index of the filter as it ships; it is always there.
    pub fn filter(&self) -> usize {
        self.index(Chooser::default_filter())
    }

    /// Index of the oracle.
    pub fn oracle(&self) -> usize {
        self.index(Chooser::Oracle)
    }

    fn index(&self, chooser: Chooser) -> usize {
        let found = self.choosers.iter().position(|c| *c == chooser);
        found.unwrap_or(0)
    }

    /// The mean over the seeds.
    pub fn value(&self, cell: usize, chooser: usize, of: impl Fn(&Measures) -> f64) -> f64 {
        let values: Vec<f64> = self.scores[cell][chooser].iter().map(of).collect();
        mean(&values)
    }

    /// Half of the 95 % interval of the mean over the seeds.
    pub fn interval(&self, cell: usize, chooser: usize, of: impl Fn(&Measures) -> f64) -> f64 {
        let values: Vec<f64> = self.scores[cell][chooser].iter().map(of).collect();
        half_interval(&values)
    }

    /// The rule with the lowest value in a cell.
    pub fn best(&self, cell: usize, of: impl Fn(&Measures) -> f64 + Copy) -> usize {
        let rules = (0..self.choosers.len()).filter(|c| self.choosers[*c].competes());
        let value = |c: &usize| self.value(cell, *c, of);
        rules
            .min_by(|a, b| value(a).total_cmp(&value(b)))
            .unwrap_or(0)
    }

    /// A chooser against the best rule of each of `cells`.
    pub fn ratio(
        &self,
        cells: &[usize],
        chooser: usize,
        of: impl Fn(&Measures) -> f64 + Copy,
    ) -> Ratio {
        self.against(cells, chooser, |cell| self.best(cell, of), of)
    }

    /// A chooser against another one in each of `cells`.
    pub fn against(
        &self,
        cells: &[usize],
        chooser: usize,
        other: impl Fn(usize) -> usize,
        of: impl Fn(&Measures) -> f64 + Copy,
    ) -> Ratio {
        let others: Vec<usize> = cells.iter().map(|cell| other(*cell)).collect();
        let pairs = || cells.iter().copied().zip(others.iter().copied());
        let ratios: Vec<f64> = pairs()
            .map(|(cell, other)| self.value(cell, chooser, of) / self.value(cell, other, of))
            .collect();
        let of_seed = |seed: usize| {
            let ratio = |(cell, other): (usize, usize)| {
                of(&self.scores[cell][chooser][seed]) / of(&self.scores[cell][other][seed])
            };
            geometric_mean(&pairs().map(ratio).collect::<Vec<_>>())
        };
        let seeds: Vec<f64> = (0..SEEDS as usize).map(of_seed).collect();
        let (at, worst) = cells
            .iter()
            .copied()
            .zip(ratios.iter().copied())
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or((0, f64::NAN));
        Ratio {
            mean: geometric_mean(&ratios),
            interval: half_interval(&seeds),
            worst,
            at,
        }
    }
}
