// Add what makes the page work once its text is seen, so that the first frame waits for none of it.
{
  const SCRIPTS = `
    api app classify dom format generate keys lane link models prefixes refused score strip tabs tag
    text_stream tour translate typing wire
  `;
  const link = (rel, file) =>
    Object.assign(document.createElement("link"), { rel, href: `/page/${file}` });
  const loaded = (what) => new Promise((done) => (what.onload = what.onerror = done));

  const add = async () => {
    const style = link("stylesheet", "page.css");
    const rest = new XMLHttpRequest(); // the policy lets no other way make elements of a text
    rest.open("GET", "/page/rest.html");
    rest.responseType = "document";
    rest.send();
    document.head.append(
      style,
      ...SCRIPTS.match(/\w+/g).map((name) => link("modulepreload", `${name}.js`)),
    );
    await Promise.all([style, rest].map(loaded)); // what comes is never seen without its style
    if (rest.status !== 200 || !rest.response) {
      const problem = document.getElementById("start-problem");
      problem.textContent = "The server did not send the rest of this page. Load it again.";
      problem.hidden = false;
      document.body.removeAttribute("aria-busy");
      return;
    }
    document.querySelector("main").append(...rest.response.body.childNodes);
    import("/page/app.js");
  };

  const seen = new Promise((tell) => {
    const look = (paints) => {
      if (paints.getEntriesByName("first-contentful-paint").length) tell();
    };
    new PerformanceObserver(look).observe({ type: "paint", buffered: true });
  });
  seen.then(add);
}
