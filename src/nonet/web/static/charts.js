// Draws figures over time. Each figure has its lines in its legend: a class gives the colour, and
// data-series names what the line shows.
"use strict";
{
  const READ_MS = 30000;
  const HOUR = 3600;
  const history = document.querySelector("[data-figures]");
  const figures = history ? [...history.querySelectorAll("figure[data-chart]")] : [];
  const plots = new Map();
  let found = null;
  let readAt = 0;

  const seconds = (text) => Date.parse(text) / 1000;
  const now = () => Date.now() / 1000;
  const duration = (value) => {
    if (value < 1) return `${Math.round(value * 1000)} ms`;
    if (value < 120) return `${+value.toPrecision(3)} s`;
    return value < 7200 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
  };
  const count = (value) => {
    if (value >= 1e4) return value >= 1e6 ? `${+(value / 1e6).toPrecision(3)} M` : `${+(value / 1e3).toPrecision(3)} k`;
    return `${+value.toPrecision(3)}`;
  };

  // What a line shows of a slot. An hour that has not ended counts as far as it has come.
  const value = (chart, name, at, slot) => {
    if (name === "submitted") return slot?.load?.submitted_per_minute ?? null;
    if (name === "oldest") return slot?.load?.oldest_seconds ?? null;
    if (chart === "load") return slot?.load?.[name] ?? null;
    if (chart === "times") return slot?.figures[name].p95 ?? null;
    const passed = Math.min(found.slot_seconds, Math.max(5, now() - at));
    return (slot ? slot.figures[name] : 0) * 60 / passed;
  };

  // Times, and a column for each line. Nothing was counted in the slots that are missing.
  const columns = (chart, names) => {
    const slots = new Map(found.series.map((slot) => [Math.round(seconds(slot.at)), slot]));
    const times = [];
    const [some] = slots.keys();
    const size = found.slot_seconds;
    const first = some === undefined ? seconds(found.since) : some - Math.floor((some - seconds(found.since)) / size) * size;
    // Workers report some seconds late, so a minute is shown when it has ended.
    const end = size < HOUR && found.series.length > 1 ? now() - size : now();
    for (let at = Math.round(first); at < end; at += size) times.push(at);
    const own = names.filter((name) => name !== "before");
    const table = [times, ...own.map((name) => times.map((at) => value(chart, name, at, slots.get(at))))];
    if (own.length === names.length) return table;
    const hours = found.before.map((slot) => seconds(slot.at) + 24 * HOUR);
    return uPlot.join([table, [hours, found.before.map((slot) => slot.figures.ended / 60)]]);
  };

  const draw = (figure) => {
    const box = figure.querySelector(".plot");
    const legend = [...figure.querySelectorAll("[data-series]")];
    const chart = figure.dataset.chart;
    const names = legend.map((item) => item.dataset.series);
    const data = columns(chart, names);
    if (plots.has(figure)) return plots.get(figure).setData(data);
    const text = getComputedStyle(figure).color;
    const grid = { stroke: getComputedStyle(box).borderTopColor, width: 1 };
    const form = chart === "times" ? duration : count;
    // The numbers under the pointer stand in the legend.
    const show = (plot) => legend.forEach((item, at) => {
      const number = plot.cursor.idx == null ? null : plot.data[at + 1][plot.cursor.idx];
      item.querySelector("b").textContent = number == null ? "" : form(number);
    });
    const options = {
      width: box.clientWidth,
      height: 180,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false },
      hooks: { setCursor: [show] },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), document.body.dataset.zone),
      scales: {
        x: { range: () => [seconds(found.since), now()] },
        y: { range: (_, low, high) => [0, (high || 1) * 1.1] },
      },
      axes: [
        { stroke: text, grid, values: now() - seconds(found.since) > 48 * HOUR ? "{D} {MMM}" : "{HH}:{mm}", size: 32 },
        { stroke: text, grid, size: 68, values: (_, values) => values.map(form) },
      ],
      series: [{}, ...legend.map((item, at) => ({
        stroke: getComputedStyle(item).borderLeftColor,
        width: 2,
        points: { show: data[0].length < 3 },
        dash: names[at] === "before" ? [4, 4] : undefined,
        spanGaps: chart !== "load",
      }))],
    };
    plots.set(figure, new uPlot(options, data, box));
  };

  const redraw = () => {
    for (const plot of plots.values()) plot.destroy();
    plots.clear();
    if (found) figures.forEach(draw);
  };

  const read = async () => {
    if (Date.now() - readAt < READ_MS) return;
    readAt = Date.now();
    const answer = await fetch(history.dataset.figures, { headers: { "Nonet-Refresh": "1" } }).catch(() => null);
    if (!answer?.ok) return;
    [found = null] = (await answer.json()).items;
    if (found) figures.forEach(draw);
  };

  if (figures.length) {
    read();
    document.addEventListener("nonet:refresh", read);
    // Colours change with the theme, which another script sets first, and on paper.
    document.getElementById("theme").addEventListener("click", () => setTimeout(redraw));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    matchMedia("print").addEventListener("change", redraw);
    new ResizeObserver(() => {
      for (const [figure, plot] of plots) {
        plot.setSize({ width: figure.querySelector(".plot").clientWidth, height: 180 });
      }
    }).observe(document.getElementById("main"));
  }
}
