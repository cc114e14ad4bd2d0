// Add what makes the page work once its text is seen, so that the first frame waits for none of it.

const rest = document.getElementById("rest");
const add = (paints) => {
  if (paints.getEntriesByName("first-contentful-paint").length) rest.replaceWith(rest.content);
};
new PerformanceObserver(add).observe({ type: "paint", buffered: true });
