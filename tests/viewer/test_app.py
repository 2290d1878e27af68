"""Who gets an answer over HTTP, and which rules the browser is told."""

import json
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("starlette", reason="the viewer's extra is not installed")

from starlette.testclient import TestClient

from shardkeep.view.web.answers import Answers
from shardkeep.view.web.app import STATIC, make_app
from shardkeep.view.web.library import Library

TOKEN = "secret-token-of-the-test"


@pytest.fixture(scope="module")
def app(demo):
    return make_app(Answers(Library([demo])), TOKEN)


def client(app, **headers: str) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1:8000", headers=headers)


@pytest.fixture
def known(app) -> TestClient:
    return client(app, authorization=f"Bearer {TOKEN}")


def test_without_the_token_there_is_nothing(app):
    for path in ("/", "/api/home", "/assets/viewer.js", "/nothing"):
        response = client(app).get(path)
        assert response.status_code == 403
        assert "token" in response.text
        assert "demo" not in response.text


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1], "ä"])
def test_a_wrong_token_opens_nothing(app, token):
    response = client(app).get("/", params={"token": token}, follow_redirects=False)
    assert response.status_code == 403
    assert "set-cookie" not in response.headers


def test_the_token_becomes_a_cookie_and_leaves_the_address(app):
    browser = client(app)
    response = browser.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert response.status_code == 303
    assert response.headers["location"] == "/"
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert browser.get("/api/home").json()["places"][0]["name"] == "demo"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", "evil:127.0.0.1"])
def test_another_host_name_gets_nothing(known, host):
    response = known.get("/api/home", headers={"host": host})
    assert response.status_code == 403
    assert "127.0.0.1" in response.text


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1", "[::1]:8000"])
def test_this_machine_by_any_of_its_names_is_answered(known, host):
    assert known.get("/api/home", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_cannot_ask(known, site):
    response = known.get("/api/home", headers={"sec-fetch-site": site})
    assert response.status_code == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_but_get_is_understood(known, method):
    assert known.request(method, "/api/home").status_code in (404, 405)


def test_every_answer_has_the_rules_for_the_browser(known):
    for path in ("/", "/api/home", "/api/nothing", "/assets/viewer.js", "/nothing"):
        headers = known.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path", ["/assets/../app.py", "/assets/%2e%2e/app.py", "/assets/..%2f..%2fapp.py", "/app.py"]
)
def test_no_path_leads_out_of_the_pages(known, path):
    assert known.get(path).status_code == 404


def test_errors_are_json_with_a_sentence(known):
    response = known.get("/api/tensor", params={"at": "0/step-00000700", "key": "<img>"})
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    assert response.json()["message"] == "the checkpoint has no tensor '<img>'"
    assert known.get("/api/tensor").status_code == 400


def test_the_page_has_no_script_of_its_own_and_fetches_nothing_from_elsewhere(known):
    page = known.get("/").text
    assert '<script type="module" crossorigin src="/assets/viewer.js"></script>' in page
    for name in ("viewer.js", "viewer.css"):
        text = (STATIC / "assets" / name).read_text()
        assert "https://" not in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_built_page_is_small():
    assert sum(path.stat().st_size for path in STATIC.rglob("*") if path.is_file()) < 300_000


def test_serve_prints_an_address_that_opens_and_ends_with_ctrl_c(demo):
    import httpx2

    process = subprocess.Popen(
        [sys.executable, "-m", "shardkeep", "serve", str(demo), "--no-open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": "false"},
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        # It can be asked from the moment that its address is printed.
        response = httpx2.get(url, follow_redirects=True, timeout=20)
        assert response.status_code == 200
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode in (0, 130)
    assert "Traceback" not in errors


def test_serving_takes_no_torch(demo):
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from shardkeep.view.web.answers import Answers\n"
        "from shardkeep.view.web.library import Library\n"
        "import shardkeep.view.web.app\n"
        f"answers = Answers(Library([Path({str(demo)!r})]))\n"
        "at = '0/step-00000700'\n"
        "answers.answer('values', {'at': at, 'key': 'model.norm.weight'})\n"
        "answers.answer('compare', {'a': at, 'b': '0/step-00000650'})\n"
        "answers.answer('what-if', {'at': at, 'mesh': 'dp=2'})\n"
        "print(json.dumps('torch' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import json\n{code}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) is False
