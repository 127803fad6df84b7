/* Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0 */
"use strict";
(() => {
  const scale = (text) => {
    const [kind, low, high] = text.split(" ").map((v, i) => (i ? Number(v) : v));
    const value = (place) =>
      kind === "log" ? low * (high / low) ** place : low + place * (high - low);
    return { value, percent: kind === "percent", log: kind === "log" };
  };
  const write = (axis, place) => {
    const value = axis.value(place);
    if (axis.percent) return (100 * value).toFixed(1) + " %";
    return Math.abs(value) >= 1000
      ? Math.round(value).toLocaleString("en")
      : String(Number(value.toPrecision(4)));
  };
  const points = (path) =>
    [...path.getAttribute("d").matchAll(/[ML](-?[\d.]+) (-?[\d.]+)/g)].map((m) => [+m[1], +m[2]]);

  for (const plot of document.querySelectorAll(".plot[data-x]")) {
    const paths = [...plot.querySelectorAll("path[data-name]")].slice(0, 8);
    if (!paths.length) continue;
    const x = scale(plot.dataset.x), y = scale(plot.dataset.y);
    const series = paths.map((path) => ({ path, at: points(path) })).filter((s) => s.at.length);
    const hair = plot.appendChild(document.createElement("div"));
    const box = plot.appendChild(document.createElement("div"));
    hair.className = "hair";
    box.className = "readout";
    const show = (on) => { hair.hidden = box.hidden = !on; };
    show(false);
    const nearest = (at, target) =>
      at.reduce((a, b) => (Math.abs(b[0] - target) < Math.abs(a[0] - target) ? b : a));
    plot.addEventListener("pointermove", (event) => {
      const frame = plot.getBoundingClientRect();
      const target = (1000 * (event.clientX - frame.left)) / frame.width;
      if (target < -20 || target > 1020) return show(false);
      const at = nearest(series[0].at, target)[0];
      box.replaceChildren();
      const add = (tag, text, colour) => {
        const line = box.appendChild(document.createElement("div"));
        if (colour) line.appendChild(document.createElement("i")).style.background = colour;
        line.appendChild(document.createElement(tag)).textContent = text;
      };
      const name = plot.parentElement.querySelector(".x-label").textContent;
      const across = x.value(at / 1000);
      add("b", name + " " + Math.round(x.log ? Number(across.toPrecision(3)) : across).toLocaleString("en"));
      for (const s of series) {
        const near = nearest(s.at, at);
        if (Math.abs(near[0] - at) > 15) continue;
        add("span", s.path.dataset.name + " " + write(y, 1 - near[1] / 1000), getComputedStyle(s.path).color);
      }
      show(true);
      hair.style.left = at / 10 + "%";
      box.style.left = at > 480 ? "auto" : "calc(" + at / 10 + "% + 8px)";
      box.style.right = at > 480 ? "calc(" + (100 - at / 10) + "% + 8px)" : "auto";
    });
    plot.addEventListener("pointerleave", () => show(false));
  }
})();
