// Draws the charts of the last hour. Each figure has its series in its legend: a class gives the
// colour, and data-series names what the line shows.
"use strict";
{
  const READ_MS = 10000;
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const plots = new Map();
  let hour = null;
  let readAt = 0;

  const seconds = (text) => Date.parse(text) / 1000;
  const duration = (value) => {
    if (value < 1) return `${Math.round(value * 1000)} ms`;
    if (value < 120) return `${+value.toPrecision(3)} s`;
    return value < 7200 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
  };
  const count = (value) => (value >= 1e6 ? `${value / 1e6} M` : value >= 1e4 ? `${value / 1e3} k` : `${value}`);

  // The columns of a chart: times, and a function for each series.
  const sources = {
    load: () => [hour.samples.map((one) => seconds(one.at)), (name) => hour.samples.map((one) => one[name])],
    rates: () => [hour.minutes.map((one) => seconds(one.at)), (name) => hour.minutes.map(rate(name))],
    times: () => [
      hour.minutes.map((one) => seconds(one.at)),
      (name) => hour.minutes.map((one) => one.figures[name].p95),
    ],
  };
  // Workers report by minutes; the minute that has not ended counts as far as it has come.
  const rate = (name) => (one) => {
    const begin = seconds(one.at);
    if (name !== "submitted") {
      return one.figures[name] / Math.min(60, Math.max(5, Date.now() / 1000 - begin));
    }
    const inside = hour.samples.filter((each) => seconds(each.at) >= begin && seconds(each.at) < begin + 60);
    const known = inside.map((each) => each.submitted).filter((each) => each !== null);
    return known.length ? known.reduce((sum, each) => sum + each, 0) / known.length : null;
  };

  const draw = (figure) => {
    const box = figure.querySelector(".plot");
    const legend = [...figure.querySelectorAll("[data-series]")];
    const [times, column] = sources[figure.dataset.chart]();
    const data = [times, ...legend.map((item) => column(item.dataset.series))];
    if (plots.has(figure)) return plots.get(figure).setData(data);
    const text = getComputedStyle(figure).color;
    const grid = { stroke: getComputedStyle(box).borderTopColor, width: 1 };
    const form = figure.dataset.chart === "times" ? duration : count;
    const options = {
      width: box.clientWidth,
      height: 180,
      legend: { show: false },
      cursor: { y: false },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), document.body.dataset.zone),
      scales: { x: { range: () => [Date.now() / 1000 - 3600, Date.now() / 1000] }, y: { range: (_, low, high) => [0, (high || 1) * 1.1] } },
      axes: [
        { stroke: text, grid, values: "{HH}:{mm}" },
        { stroke: text, grid, size: 64, values: (_, values) => values.map(form) },
      ],
      series: [{}, ...legend.map((item) => ({
        stroke: getComputedStyle(item).borderLeftColor,
        width: 2,
        points: { show: times.length < 3 },
        spanGaps: true,
      }))],
    };
    plots.set(figure, new uPlot(options, data, box));
  };

  const drawAll = () => { if (hour) figures.forEach(draw); };
  const redraw = () => {
    for (const plot of plots.values()) plot.destroy();
    plots.clear();
    drawAll();
  };

  const read = async () => {
    if (Date.now() - readAt < READ_MS) return;
    readAt = Date.now();
    const address = document.querySelector("[data-hour]").dataset.hour;
    const answer = await fetch(address, { headers: { "Nonet-Refresh": "1" } }).catch(() => null);
    if (!answer || !answer.ok) return;
    hour = await answer.json();
    drawAll();
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
