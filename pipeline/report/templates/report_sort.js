// Sorts a table by a column, within each of its parts. The page reads the same without it.
document.querySelectorAll("table.sortable").forEach(function (table) {
  table.querySelectorAll("thead th").forEach(function (head, column) {
    function sort() {
      var down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("thead th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      Array.prototype.forEach.call(table.tBodies, function (body) {
        var rows = Array.prototype.filter.call(body.rows, function (row) { return !row.classList.contains("part"); });
        rows.sort(function (a, b) { return compare(a.cells[column], b.cells[column], down); });
        rows.forEach(function (row) { body.appendChild(row); });
      });
    }
    head.classList.add("sort");
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", function (event) {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
});
function compare(a, b, down) {
  var x = a.dataset.v, y = b.dataset.v, sign = down ? -1 : 1;
  var numeric = a.classList.contains("n");
  // A dash stays at the end whichever way the column is sorted.
  if (numeric && (x === undefined || y === undefined)) { return (x === undefined) - (y === undefined); }
  return sign * (numeric ? x - y : a.textContent.localeCompare(b.textContent));
}
