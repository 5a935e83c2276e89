import stat

from envbuilder.layer.merge import IMPLIED, merge
from envbuilder.layer.tree import Placed


def d(path, mode=0o755):
    return Placed(path=path, mode=stat.S_IFDIR | mode)


def f(path, size=0, link=""):
    return Placed(path=path, mode=stat.S_IFREG | 0o644, size=size, link=link)


def s(path, link):
    return Placed(path=path, mode=stat.S_IFLNK | 0o777, link=link)


def tree(*layers):
    return {path: node.layer for path, node in merge(layers).walk()}


def test_later_layers_win_and_directories_keep_their_children():
    assert tree([d("a"), f("a/x"), f("a/y")], [d("a"), f("a/x"), f("a/z")]) == {"a": 1, "a/x": 1, "a/y": 0, "a/z": 1}


def test_a_directory_has_the_attributes_of_the_last_layer_that_names_it():
    merged = merge([[d("tmp", 0o1777)], [d("tmp", 0o700), f("tmp/x")], [f("tmp/y")]])

    assert stat.S_IMODE(merged.root.children["tmp"].placed.mode) == 0o700


def test_a_file_over_a_directory_removes_what_was_below_and_back():
    assert tree([d("a"), f("a/x")], [f("a")]) == {"a": 1}
    assert tree([f("a")], [d("a"), f("a/x")]) == {"a": 1, "a/x": 1}


def test_whiteouts_hide_what_is_below_but_not_their_own_layer():
    below = [d("a"), f("a/x"), f("a/y"), f("b")]

    assert tree(below, [f("a/.wh.x"), f(".wh.b")]) == {"a": 0, "a/y": 0}
    assert tree(below, [f("a/new"), f("a/.wh..wh..opq")]) == {"a": 0, "a/new": 1, "b": 0}
    assert tree(below, [f("b"), f(".wh.b")]) == {"a": 0, "a/x": 0, "a/y": 0, "b": 1}
    assert tree(below, [f("none/.wh.x"), f(".wh.none")]) == {"a": 0, "a/x": 0, "a/y": 0, "b": 0}


def test_parents_that_no_layer_names_are_made():
    merged = merge([[f("a/b/c")]])

    assert [(path, node.layer) for path, node in merged.walk()] == [("a", IMPLIED), ("a/b", IMPLIED), ("a/b/c", 0)]


def test_an_unnamed_parent_that_is_a_link_is_followed_inside_the_tree():
    base = [s("lib", "usr/lib"), d("usr"), d("usr/lib"), s("up", "../../usr"), s("loop", "loop"), s("abs", "/usr/lib")]

    assert "usr/lib/x" in tree(base, [f("lib/x")])
    assert "usr/lib/x" in tree(base, [f("abs/x")])
    assert "usr/x" in tree(base, [f("up/x")])
    assert "loop/x" in tree(base, [f("loop/x")])


def test_hard_links_stay_one_inode_when_the_first_name_is_replaced():
    merged = merge([[f("a", 3), f("b", 3, "a"), f("c", 3, "a")], [f("a", 9)]])
    nodes = dict(merged.walk())

    assert nodes["b"].inode == nodes["c"].inode == (0, "a")
    assert nodes["a"].inode == (1, "a")


def test_what_hides_another_path_is_reported():
    merged = merge([[d("a"), f("x"), f("y")], [d("a"), f("x"), d("y")], [d("a", 0o700)]])
    found = [(r.above.path, r.below_layer, r.above_layer, r.is_type_change) for r in merged.replaced]

    assert found == [("x", 0, 1, False), ("y", 0, 1, True), ("a", 1, 2, False)]


def test_a_walk_gives_parents_first_and_siblings_by_bytes():
    paths = [path for path, _ in merge([[d("b"), f("b-c"), d("b/é"), f("b/z"), f("a")]]).walk()]

    assert paths == ["a", "b", "b/z", "b/é", "b-c"]


def test_the_nodes_of_a_tree_are_those_of_a_walk_in_its_order():
    merged = merge([[d("b"), f("b-c"), d("b/é"), f("b/z"), f("b/\udcff"), f("a")], [f("c/d"), d("b")]])

    assert [id(node) for node in merged.nodes()] == [id(node) for _, node in merged.walk()]
