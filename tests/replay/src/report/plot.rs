//! The pictures: SVG, light, with colours that colour-blind people tell apart (Okabe and Ito).
//!
//! Owns layout and style. Each rule keeps its colour and its mark everywhere.

use super::table::Table;
use crate::gateway::Rule;
use crate::grid::{Cell, Chooser, Kind};
use crate::stats::Measures;
use anyhow::{anyhow, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use prefix_router::config::Policy;
use std::path::Path;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
const POD: RGBColor = RGBColor(0, 114, 178);
const MARKED: RGBColor = RGBColor(213, 94, 0);

/// Who is drawn, and how.
fn drawn() -> [(Chooser, RGBColor, u32); 8] {
    [
        (
            Chooser::Peer(Rule::LeastRequest),
            RGBColor(153, 153, 153),
            2,
        ),
        (
            Chooser::Filter(Policy::LongestPrefix),
            RGBColor(230, 159, 0),
            2,
        ),
        (Chooser::Peer(Rule::BoundedHash), RGBColor(204, 121, 167), 2),
        (
            Chooser::Peer(Rule::CacheAware { gate: 64 }),
            RGBColor(0, 158, 115),
            2,
        ),
        (Chooser::Peer(Rule::LlmD), RGBColor(86, 180, 233), 2),
        (Chooser::Peer(Rule::Preble), RGBColor(213, 94, 0), 2),
        (Chooser::Oracle, RGBColor(0, 0, 0), 1),
        (Chooser::default_filter(), RGBColor(0, 114, 178), 4),
    ]
}

/// Hit ratio and p90 against utilisation, for three workloads.
pub fn utilisation(table: &Table, path: &Path) -> Result<()> {
    let root = SVGBackend::new(path, (1140, 700)).into_drawing_area();
    fill(&root)?;
    let (legend, body) = root.split_vertically(56);
    key(&legend)?;
    let kinds: Vec<Kind> = [
        Kind::Mooncake,
        Kind::Chats,
        Kind::SystemPrompt,
        Kind::Bursts,
    ]
    .into_iter()
    .filter(|kind| table.cells.iter().any(|cell| cell.kind == *kind))
    .take(3)
    .collect();
    let panels = body.split_evenly((2, 3));
    for (column, kind) in kinds.iter().enumerate() {
        let mut cells: Vec<usize> = (0..table.cells.len()).collect();
        cells.retain(|at| {
            let cell = &table.cells[*at];
            let large = kind.cache_tokens()[1];
            (cell.kind, cell.pods, cell.gateways, cell.cache_tokens) == (*kind, 8, 1, large)
        });
        let title = format!("{}: hits, % of infinite", kind.name());
        panel(
            &panels[column],
            table,
            &cells,
            &title,
            |m| 100.0 * m.hits,
            false,
        )?;
        let title = format!("{}: p90 TTFT, s (log)", kind.name());
        panel(&panels[column + 3], table, &cells, &title, |m| m.p90, true)?;
    }
    root.present().map_err(failed)
}

fn panel(
    area: &Area<'_>,
    table: &Table,
    cells: &[usize],
    title: &str,
    of: fn(&Measures) -> f64,
    log: bool,
) -> Result<()> {
    type Line = (Vec<(f64, f64)>, RGBColor, u32);
    let lines: Vec<Line> = drawn()
        .into_iter()
        .filter_map(|(chooser, color, width)| {
            let who = table.choosers.iter().position(|c| *c == chooser)?;
            let point = |at: &usize| (table.cells[*at].utilisation, table.value(*at, who, of));
            Some((cells.iter().map(point).collect(), color, width))
        })
        .collect();
    let values = || {
        lines
            .iter()
            .flat_map(|(points, ..)| points.iter().map(|p| p.1))
    };
    let (low, high) = values().fold((f64::INFINITY, 0f64), |(a, b), v| (a.min(v), b.max(v)));
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(title, ("sans-serif", 15).into_font().color(&INK))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(46);
    macro_rules! draw {
        ($range:expr, $format:expr) => {{
            let mut chart = builder
                .build_cartesian_2d(0.45..1.15, $range)
                .map_err(failed)?;
            chart
                .configure_mesh()
                .x_labels(8)
                .y_labels(6)
                .x_desc("utilisation")
                .y_label_formatter(&$format)
                .light_line_style(WHITE)
                .bold_line_style(GRID)
                .axis_style(INK)
                .label_style(("sans-serif", 12).into_font().color(&INK))
                .draw()
                .map_err(failed)?;
            for (points, color, width) in &lines {
                let style = color.stroke_width(*width);
                chart
                    .draw_series(LineSeries::new(points.clone(), style))
                    .map_err(failed)?;
                let dots = points
                    .iter()
                    .map(|p| Circle::new(*p, 2 + *width as i32 / 2, color.filled()));
                chart.draw_series(dots).map_err(failed)?;
            }
        }};
    }
    match log {
        true => draw!((low * 0.8..high * 1.25).log_scale(), |v: &f64| short(*v)),
        false => draw!(0.0..105.0, |v: &f64| format!("{v:.0}")),
    }
    Ok(())
}

/// A run to be drawn: a cell, a chooser, and requests on each pod by second.
pub struct Series {
    /// What is written above it.
    pub title: String,
    /// The cell.
    pub cell: Cell,
    /// By second, by pod.
    pub requests: Vec<Vec<u32>>,
}

/// Requests on each pod over time; the first pod is marked where it restarts.
pub fn load(series: &[Series], columns: usize, path: &Path) -> Result<()> {
    let rows = series.len().div_ceil(columns);
    let size = (380 * columns as u32, 40 + 250 * rows as u32);
    let root = SVGBackend::new(path, size).into_drawing_area();
    fill(&root)?;
    let (head, body) = root.split_vertically(40);
    let style = ("sans-serif", 15).into_font().color(&INK);
    let text =
        "Requests on each pod, second by second; scales differ. Orange: the pod that restarts.";
    head.draw(&Text::new(text, (16, 14), style))
        .map_err(failed)?;
    for (series, area) in series.iter().zip(body.split_evenly((rows, columns))) {
        let most = series.requests.iter().flatten().copied().max().unwrap_or(1);
        let seconds = series.requests.len().max(1) as u32;
        let mut chart = ChartBuilder::on(&area)
            .caption(&series.title, ("sans-serif", 14).into_font().color(&INK))
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(42)
            .build_cartesian_2d(0..seconds, 0..most + most / 10 + 1)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_labels(6)
            .y_labels(5)
            .x_desc("seconds")
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(("sans-serif", 12).into_font().color(&INK))
            .draw()
            .map_err(failed)?;
        for pod in (0..series.cell.pods).rev() {
            let marked = pod == 0 && series.cell.kind == Kind::Restart;
            let style = match marked {
                true => MARKED.stroke_width(2),
                false => POD.mix(0.55).stroke_width(1),
            };
            let points = series.requests.iter().enumerate();
            let points = points.map(|(second, pods)| (second as u32, pods[pod]));
            chart
                .draw_series(LineSeries::new(points, style))
                .map_err(failed)?;
        }
    }
    root.present().map_err(failed)
}

fn key(area: &Area<'_>) -> Result<()> {
    let style = ("sans-serif", 14).into_font().color(&INK);
    for (n, (chooser, color, width)) in drawn().iter().rev().enumerate() {
        let (x, y) = (24 + 280 * (n as i32 % 4), 14 + 22 * (n as i32 / 4));
        let line = vec![(x, y + 6), (x + 30, y + 6)];
        area.draw(&PathElement::new(line, color.stroke_width(*width)))
            .map_err(failed)?;
        area.draw(&Circle::new(
            (x + 15, y + 6),
            2 + *width as i32 / 2,
            color.filled(),
        ))
        .map_err(failed)?;
        area.draw(&Text::new(chooser.name(), (x + 40, y), style.clone()))
            .map_err(failed)?;
    }
    Ok(())
}

fn short(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{s:.2}"),
        s if s < 10.0 => format!("{s:.1}"),
        s => format!("{s:.0}"),
    }
}

fn fill(area: &Area<'_>) -> Result<()> {
    area.fill(&WHITE).map_err(failed)
}

/// The library's errors borrow from the area.
fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}
