"use strict";
/* Lists are cut down as one types; a page is whole without it. */
for (const form of document.querySelectorAll("form.filters")) {
  const whole = "whole" in form.dataset;
  const lists = whole ? [...document.querySelectorAll(".rows")] : [form.nextElementSibling];
  const texts = new Map();
  const told = form.querySelector("output");
  const text = (row) => {
    if (!texts.has(row)) texts.set(row, row.textContent.toLowerCase());
    return texts.get(row);
  };
  const apply = () => {
    const words = form.elements.text.value.toLowerCase().trim();
    const state = form.elements.state ? form.elements.state.value : "";
    const rows = lists.flatMap((list) => [...list.children]).filter((row) => !row.classList.contains("top"));
    let shown = 0, all = 0, group = null, inside = 0;
    const close = () => { if (group) group.hidden = Boolean((words || state) && !inside); };
    for (const row of rows) {
      if (row.classList.contains("group")) { close(); group = row; inside = 0; continue; }
      const fits = (!state || row.dataset.state === state) && (!words || text(row).includes(words));
      row.hidden = !fits;
      all += 1; shown += fits; inside += fits;
    }
    close();
    if (whole) for (const list of lists) list.closest("section").hidden = !list.querySelector(".row:not(.top, [hidden])");
    told.textContent = shown === all ? "" : `${shown} of ${all}`;
  };
  let waiting = 0;
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(apply, 120); });
}
