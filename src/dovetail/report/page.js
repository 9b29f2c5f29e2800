"use strict";
// The page is whole without this script.  With it: values under the pointer or the arrow keys,
// series that hide, tables that sort, records that save.  Words are only ever set as text.

const tip = document.body.appendChild(document.createElement("div"));
set(tip, { id: "tip", role: "status", hidden: "" });

function set(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function showTip(head, body, x, y) {
  const strong = document.createElement("b");
  strong.textContent = head;
  tip.replaceChildren(strong, body);
  tip.hidden = false;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  const above = y - tip.offsetHeight - 12;
  tip.style.left = Math.max(8, Math.min(x + 12, room)) + "px";
  tip.style.top = (above > 8 ? above : y + 16) + "px";
}

// What can be pointed at in a drawing: {x, y, head, body, series}, in the drawing's own units.
function targetsOf(chart) {
  if (chart.classList.contains("heat")) {
    return [...chart.querySelectorAll(".cell")].map((cell) => {
      const title = cell.querySelector("title"), box = (cell.querySelector("rect") || cell).getBBox();
      const said = title.textContent, end = said.lastIndexOf(": ");
      title.remove(); // ours replaces the browser's own tooltip
      return { x: box.x + box.width / 2, y: box.y + box.height / 2, box, head: said.slice(end + 2), body: said.slice(0, end) };
    });
  }
  const frame = chart.querySelector("[data-nodes]");
  if (frame) { // the nodes of a plane, row by row from the lowest
    const { box: [left, bottom, right, top], classes, ...words } = JSON.parse(frame.dataset.nodes);
    const [x, y, z] = [words.x.split(" "), words.y.split(" "), words.z.split(" ")];
    return z.map((value, k) => {
      const i = Math.floor(k / x.length), j = k % x.length;
      return { x: left + (right - left) * j / (x.length - 1), y: bottom + (top - bottom) * i / (y.length - 1), head: classes[value] ?? value, body: x[j] + ", " + y[i] };
    });
  }
  const xName = chart.dataset.x ?? "x";
  return [...chart.querySelectorAll(".plot .series")].flatMap((series) =>
    JSON.parse(series.dataset.points).map(([x, y, xWords, yWords]) => (
      { x, y, head: yWords, body: [series.dataset.name, (xName + " " + xWords).trim()].filter(Boolean).join(" · "), series })));
}

function pointAt(chart) {
  const targets = targetsOf(chart);
  const heat = chart.classList.contains("heat");
  const polar = chart.classList.contains("polar"), rows = chart.classList.contains("interval");
  // Lines and bars are read along x, rows along y.
  const [across, upright] = rows ? [0.3, 1] : polar || chart.classList.contains("scatter") || chart.classList.contains("plane") ? [1, 1] : [1, 0.3];
  const ring = document.createElementNS("http://www.w3.org/2000/svg", heat ? "rect" : "circle");
  chart.append(set(ring, { class: "ring", r: 6, visibility: "hidden" }));
  let current = null;
  const visible = () => targets.filter((t) => !t.series || t.series.style.display !== "none");

  function show(target) {
    current = target;
    ring.setAttribute("visibility", target ? "visible" : "hidden");
    if (!target) { tip.hidden = true; return; }
    const { x, y, width, height } = target.box || target;
    set(ring, heat ? { x, y, width, height } : { cx: x, cy: y });
    const at = new DOMPoint(target.x, target.y).matrixTransform(chart.getScreenCTM());
    showTip(target.head, target.body, at.x, at.y);
  }
  function nearest(event) {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    const inside = ({ x, y, width, height }) => at.x >= x && at.x <= x + width && at.y >= y && at.y <= y + height;
    if (heat) return visible().find(({ box }) => inside(box));
    let best = null, least = 60;
    for (const target of visible()) {
      const far = Math.hypot((target.x - at.x) * across, (target.y - at.y) * upright);
      if (far < least) [best, least] = [target, far];
    }
    return best;
  }
  function next(dx, dy) {
    if (!current) return visible()[0];
    const own = visible().filter((t) => t.series === current.series);
    if (polar && dx) return own.at((own.indexOf(current) + dx) % own.length); // around the centre
    let best = current, least = Infinity;
    for (const target of visible()) {
      const x = target.x - current.x, y = target.y - current.y;
      const along = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
      const other = target.series !== current.series ? 1 : 0, stay = rows ? dy : dx;
      const cost = along + aside * (stay ? 0.2 : 3) + (stay ? other * 1e4 : 0); // along on one series
      if (along > 0.5 && cost < least) [best, least] = [target, cost];
    }
    return best;
  }
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  set(chart, { tabindex: "0" }).classList.add("live");
  // A finger leaves as soon as it is lifted; the click that follows shows the value.
  for (const kind of ["pointermove", "click"]) chart.addEventListener(kind, (event) => show(nearest(event)));
  chart.addEventListener("pointerleave", () => show(null));
  chart.addEventListener("blur", () => show(null));
  chart.addEventListener("keydown", (event) => {
    if (event.target !== chart) return;
    if (event.key === "Escape") show(null);
    else if (event.key in arrows) { event.preventDefault(); show(next(...arrows[event.key])); }
  });
}

function hideBySeries(chart) {
  for (const entry of chart.querySelectorAll(".entry")) {
    const series = chart.querySelector(`.plot [data-series="${entry.dataset.series}"]`);
    const turn = () => {
      const off = entry.classList.toggle("off");
      series.style.display = off ? "none" : "";
      entry.setAttribute("aria-pressed", String(!off));
    };
    set(entry, { tabindex: "0", role: "button", "aria-pressed": "true" });
    entry.addEventListener("click", turn);
    entry.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); turn(); }
    });
  }
}

function compare(a, b) {
  const [x, y] = [Number(a), Number(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : Math.sign(x - y) || 0;
}

function sortable(table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], original = [...body.rows];
  heads.forEach((head, column) => {
    const button = set(document.createElement("button"), { type: "button" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const then = now === "ascending" ? "descending" : now === "descending" ? null : "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (then) head.setAttribute("aria-sort", then);
      const sign = then === "descending" ? -1 : 1;
      const raw = (row) => row.cells[column].dataset.raw;
      const last = (a, b) => (raw(a) === "") - (raw(b) === ""); // empty cells, whatever the order
      const rows = then ? [...original].sort((a, b) => last(a, b) || sign * compare(raw(a), raw(b))) : original;
      body.append(...rows);
    });
  });
}

// The record as its file holds it; long lists that occur again are kept once, a line each.
function recordText(section) {
  const text = section.querySelector("script[type='application/json']:not(.lists)").textContent.trim();
  const lists = section.querySelector(".lists")?.textContent.trim().split("\n");
  return lists ? text.replace(/\{"dovetail:list":(\d+)\}/g, (_, place) => lists[place]) : text;
}

function saveable(button) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const link = document.createElement("a"), text = recordText(button.closest(".record"));
    set(link, { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: button.dataset.file });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

document.querySelectorAll(".chart").forEach((chart) => { pointAt(chart); hideBySeries(chart); });
document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll(".save").forEach(saveable);
