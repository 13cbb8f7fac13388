// One slider over training steps moves every panel of a recorded run. The data is in
// window.emergenceExplorer (explorer-data.js); nothing is fetched.
(() => {
  "use strict";
  const root = document.getElementById("explorer");
  const runs = (window.emergenceExplorer || { runs: [] }).runs;
  if (!root || !runs.length) return;

  const at = (id) => document.getElementById(`explorer-${id}`);
  const slider = at("step");
  const panel = (name) => root.querySelector(`[data-panel="${name}"]`);
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const percent = (share) => `${Math.round(100 * share)} %`;
  const colour = (query) => `--q${query % 8}`;
  const WIDTH = 340, HEIGHT = 170, LEFT = 34, RIGHT = 8, TOP = 8, BOTTOM = 22;

  function svg(parent, tag, attributes, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return parent.appendChild(element);
  }

  function bytes(base64) {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  }

  // A chart of lines over steps; returns a function that moves its cursor to a look.
  function chart(name, title, steps, lines, colours, top, guess) {
    const plot = panel(name).querySelector(".explorer-plot");
    plot.replaceChildren();
    const picture = svg(plot, "svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title,
    });
    const last = steps[steps.length - 1];
    const x = (step) => LEFT + ((WIDTH - LEFT - RIGHT) * step) / last;
    const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / top;
    const rule = (x1, y1, x2, y2, more) =>
      svg(picture, "line", { x1, y1, x2, y2, stroke: "currentColor", ...more });
    rule(LEFT, y(0), WIDTH - RIGHT, y(0), { opacity: 0.5 });
    rule(LEFT, y(0), LEFT, TOP, { opacity: 0.5 });
    for (let i = 0; i <= 3; i++) {
      const step = Math.round((last * i) / 3), anchor = i === 3 ? "end" : i ? "middle" : "start";
      svg(picture, "text", { x: x(step), y: HEIGHT - 6, fill: "currentColor", "text-anchor": anchor },
        step.toLocaleString("en"));
    }
    for (const value of [0, top / 2, top]) {
      svg(picture, "text", { x: LEFT - 4, y: y(value) + 4, fill: "currentColor", "text-anchor": "end" },
        String(Math.round(value * 100) / 100));
    }
    if (guess !== undefined) {
      rule(LEFT, y(guess), WIDTH - RIGHT, y(guess), { "stroke-dasharray": "4 4", opacity: 0.6 });
    }
    lines.forEach((values, i) => {
      const points = values.map((v, k) => `${x(steps[k]).toFixed(1)},${y(v).toFixed(1)}`);
      svg(picture, "path", { d: `M${points.join("L")}`, style: `stroke:var(${colours[i]})` });
    });
    const cursor = rule(0, TOP, 0, y(0), { class: "explorer-cursor" });
    const dots = lines.map((_, i) =>
      svg(picture, "circle", { r: 3.5, style: `fill:var(${colours[i]})` }));
    return (look) => {
      cursor.setAttribute("x1", x(steps[look]));
      cursor.setAttribute("x2", x(steps[look]));
      dots.forEach((dot, i) => {
        dot.setAttribute("cx", x(steps[look]));
        dot.setAttribute("cy", y(lines[i][look]));
      });
    };
  }

  // Cividis, between a few of its colours.
  const STOPS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [199, 180, 103],
    [254, 232, 56]];
  function shade(share) {
    const place = Math.min(share, 1) * (STOPS.length - 1), i = Math.min(Math.floor(place), 4);
    const mix = STOPS[i].map((c, k) => Math.round(c + (place - i) * (STOPS[i + 1][k] - c)));
    return `rgb(${mix.join()})`;
  }

  // Share of a head's attention on the keys that queries need, mean over the watched queries.
  function onNeeded(head, look) {
    const [, heads, queries, keys] = run.shape;
    const shares = run.needed.map((needed, query) => {
      const from = ((look * heads + head) * queries + query) * keys;
      return needed.reduce((sum, key) => sum + pattern[from + key] / 255, 0);
    });
    return mean(shares);
  }

  const canvas = panel("attention").querySelector("canvas");
  const MARK = 14, ROW = 26, CANVAS = 770;
  function paintAttention(head, look) {
    const [, heads, queries, keys] = run.shape;
    const wide = (CANVAS - MARK) / keys, style = getComputedStyle(root);
    canvas.width = CANVAS;
    canvas.height = ROW * queries;
    const paint = canvas.getContext("2d");
    for (let query = 0; query < queries; query++) {
      const from = ((look * heads + head) * queries + query) * keys, top = query * ROW;
      paint.fillStyle = style.getPropertyValue(colour(query));
      paint.fillRect(0, top + 2, MARK - 4, ROW - 4);
      for (let key = 0; key < keys; key++) {
        paint.fillStyle = shade(pattern[from + key] / 255);
        paint.fillRect(MARK + key * wide, top, wide + 0.5, ROW);
      }
      paint.fillStyle = "#ffffff";  // a frame's sides would hide what is in a narrow cell
      for (const key of run.needed[query]) {
        for (const edge of [top + 1, top + ROW - 4]) {
          paint.fillRect(MARK + key * wide + 1, edge, wide - 2, 3);
        }
      }
    }
  }

  let run, pattern, cursors;

  function show() {
    const look = Number(slider.value), step = run.steps[look], head = Number(at("head").value);
    const words = `${step.toLocaleString("en")} of ${run.steps[run.steps.length - 1].toLocaleString("en")}`;
    at("at").textContent = words;
    slider.setAttribute("aria-valuetext", `step ${words}`);
    const say = (name, text) => {
      panel(name).querySelector("output").textContent = text;
    };
    paintAttention(head, look);
    const needed = onNeeded(head, look);
    say("attention", `${percent(needed)} on needed keys`);
    canvas.setAttribute("aria-label",
      `Attention at step ${words}: ${percent(needed)} of it on needed keys, mean over queries`);
    cursors.forEach((move) => move(look));
    const known = run.learned.filter((when) => when !== null && when <= step).length;
    say("loss", `mean ${mean(run.loss.map((l) => l[look])).toFixed(3)} nats, ` +
      `${known} of ${run.loss.length} queries learned`);
    say("rank", `mean ${mean(run.rank.map((r) => r[look])).toFixed(2)} directions`);
    const later = Math.round(100 * run.precached[look]);
    say("gradient", `direct ${100 - later} %, pre-cached ${later} %`);
  }

  function choose() {
    run = runs[Number(at("run").value)];
    pattern = bytes(run.pattern);
    at("head").replaceChildren();
    for (let head = 0; head < run.shape[1]; head++) {
      const layer = Math.floor(head / run.heads) + 1;
      at("head").add(new Option(`layer ${layer}, head ${(head % run.heads) + 1}`, head));
    }
    const end = run.steps.length - 1, ends = Array.from({ length: run.shape[1] }, (_, head) =>
      onNeeded(head, end));
    at("head").value = ends.indexOf(Math.max(...ends));  // the head that ends nearest to the truth
    const legend = root.querySelector(".explorer-legend");
    legend.replaceChildren(...run.queries.map((position, query) => {
      const item = document.createElement("li"), dot = document.createElement("span");
      dot.style.background = `var(${colour(query)})`;
      const when = run.learned[query];
      item.append(dot, `position ${position}: ` +
        (when === null ? "not learned" : `learned at ${when.toLocaleString("en")}`));
      return item;
    }));
    const colours = run.queries.map((_, query) => colour(query));
    const highest = (lines) => Math.max(...lines.flat());
    cursors = [
      chart("loss", "Loss of each query over training steps", run.steps, run.loss, colours,
        Math.max(run.guess * 1.15, Math.min(highest(run.loss), run.guess * 2)), run.guess),
      chart("rank", "Effective rank at each query over training steps", run.steps, run.rank, colours,
        Math.ceil(highest(run.rank))),
      chart("gradient", "Direct and pre-cached share of the gradient over training steps", run.steps,
        [run.precached.map((share) => 1 - share), run.precached], ["--direct", "--precached"], 1),
    ];
    const first = Math.min(...run.learned.filter((when) => when !== null));
    slider.max = run.steps.length - 1;
    slider.value = Math.max(run.steps.findIndex((step) => step >= first), 0);
    show();
  }

  function move(by) {
    slider.value = Number(slider.value) + by;
    show();
  }

  runs.forEach((each, i) => at("run").add(new Option(`${each.name}, seed ${each.seed}`, i)));
  at("run").addEventListener("change", choose);
  at("head").addEventListener("change", show);
  slider.addEventListener("input", show);
  at("back").addEventListener("click", () => move(-1));
  at("on").addEventListener("click", () => move(1));
  new MutationObserver(() => show()).observe(document.documentElement, {
    attributes: true, attributeFilter: ["data-theme"],
  });
  root.hidden = false;
  choose();
})();
