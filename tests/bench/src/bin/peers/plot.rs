//! The report as a picture: requests/s by body size, and time to first token.

use crate::chats::Outcome;
use crate::report::Report;
use crate::routers::DIRECT;
use anyhow::{Context, Result};
use plotters::prelude::*;
use std::path::Path;

/// The palette of Okabe and Ito, told apart by everyone; lines differ in their markers as well.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Colour of the `number`-th router; the pods themselves are grey.
fn colour(number: usize, name: &str) -> RGBColor {
    match name {
        DIRECT => RGBColor(110, 110, 110),
        _ => COLOURS[number % COLOURS.len()],
    }
}

/// Writes the SVG.
pub fn draw(path: &Path, report: &Report, sizes: &[usize]) -> Result<()> {
    let root = SVGBackend::new(path, (1100, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(540);
    rates(&left, report, sizes)?;
    first_token(&right, report)?;
    root.present()?;
    Ok(())
}

fn rates(area: &Area, report: &Report, sizes: &[usize]) -> Result<()> {
    let all = report.costs.iter().flat_map(|cost| &cost.cases);
    let all = all.map(|case| case.many.per_second);
    let (least, most) = bounds(all).context("no rates")?;
    let first = *sizes.iter().min().context("no sizes")? as f64;
    let last = *sizes.iter().max().context("no sizes")? as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(
            "Requests/s at 16 connections, instant pods",
            ("sans-serif", 17),
        )
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(
            (first * 0.8..last * 1.25).log_scale(),
            (least * 0.7..most * 1.4).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("bytes of the body")
        .x_label_formatter(&short)
        .y_label_formatter(&short)
        .label_style(("sans-serif", 13))
        .draw()?;
    for (number, cost) in report.costs.iter().enumerate() {
        let points = sizes.iter().zip(&cost.cases);
        let points: Vec<(f64, f64)> = points
            .map(|(bytes, case)| (*bytes as f64, case.many.per_second))
            .collect();
        let colour = colour(number, &cost.name);
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(cost.name.clone())
            .legend(move |at| match number % 3 {
                0 => circle(at, colour).into_dyn(),
                1 => triangle(at, colour).into_dyn(),
                _ => cross(at, colour).into_dyn(),
            });
        let points = points.into_iter();
        match number % 3 {
            0 => chart.draw_series(points.map(|at| circle(at, colour)))?,
            1 => chart.draw_series(points.map(|at| triangle(at, colour)))?,
            _ => chart.draw_series(points.map(|at| cross(at, colour)))?,
        };
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.85))
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}

fn first_token(area: &Area, report: &Report) -> Result<()> {
    let both = |outcome: &Outcome| [outcome.mean() * 1e3, outcome.quantile(0.9) * 1e3];
    let all = report.chats.iter().flat_map(|(_, outcome)| both(outcome));
    let (least, most) = bounds(all).context("no chats")?;
    let rows = report.chats.len();
    let mut chart = ChartBuilder::on(area)
        .caption("Time to first token of chats, ms", ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(100)
        .build_cartesian_2d(
            (least * 0.7..most * 1.4).log_scale(),
            -0.5..rows as f64 - 0.5,
        )?;
    // The first row is at the top.
    let height = |row: usize| (rows - 1 - row) as f64;
    let name = |y: &f64| {
        let row = (rows - 1).checked_sub(y.round() as usize);
        let row = row.filter(|_| (y - y.round()).abs() < 1e-6);
        let row = row.and_then(|row| report.chats.get(row));
        row.map_or(String::new(), |(name, _)| name.clone())
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("mean (circle) and 90th percentile (bar)")
        .x_label_formatter(&short)
        .y_labels(rows * 2 + 1)
        .y_label_formatter(&name)
        .label_style(("sans-serif", 13))
        .draw()?;
    for (row, (name, outcome)) in report.chats.iter().enumerate() {
        let number = report.costs.iter().position(|cost| cost.name == *name);
        let colour = colour(number.unwrap_or(row), name);
        let [mean, p90] = both(outcome);
        let y = height(row);
        let line =
            |from: (f64, f64), to: (f64, f64)| PathElement::new([from, to], colour.stroke_width(3));
        chart.draw_series([
            line((mean, y), (p90, y)),
            line((p90, y - 0.16), (p90, y + 0.16)),
        ])?;
        chart.draw_series([Circle::new((mean, y), 6, colour.filled())])?;
        let label = format!("{mean:.0} / {p90:.0}");
        let style = ("sans-serif", 13).into_font().color(&BLACK);
        chart.draw_series([Text::new(label, (mean, y + 0.36), style)])?;
    }
    Ok(())
}

fn circle<C>(at: C, colour: RGBColor) -> Circle<C, i32> {
    Circle::new(at, 5, colour.filled())
}

fn triangle<C>(at: C, colour: RGBColor) -> TriangleMarker<C, i32> {
    TriangleMarker::new(at, 7, colour.filled())
}

fn cross<C>(at: C, colour: RGBColor) -> Cross<C, i32> {
    Cross::new(at, 5, colour.stroke_width(3))
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds, value| {
        let (least, most) = bounds.unwrap_or((value, value));
        Some((value.min(least), value.max(most)))
    })
}

/// The ticks of a logarithmic axis that have room for a label: 1, 2 and 5.
fn short(value: &f64) -> String {
    let leading = value / 10f64.powf(value.log10().floor());
    match *value {
        _ if ![1.0, 2.0, 5.0].contains(&leading.round()) => String::new(),
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e3 => format!("{} k", v / 1e3),
        v => format!("{v}"),
    }
}
