package pocketbert.peers

import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.buildJsonArray
import kotlinx.serialization.json.buildJsonObject
import java.io.File

/**
 * Compares every peer with the kit's rows, and prints a line of JSON for each peer and tokenizer.
 *
 * Arguments: the kit's folder; how many of the generated rows are of single characters; how many of the smallest
 * differences of each group are printed.
 */
fun main(arguments: Array<String>) {
    val (home, characters, shown) = arguments
    val folders = checkNotNull(File(home).listFiles { file -> File(file, "rows.jsonl").isFile }).sorted()
    for (folder in folders) {
        val kit = Kit(folder)
        val rows = kit.rows(characters.toInt())
        for (peer in PEERS) {
            val opened = peer.open(kit) ?: continue
            val groups = rows.groupBy(Row::group).mapValues { (_, group) -> compare(opened, group) }
            val line = buildJsonObject {
                put("artifact", JsonPrimitive(peer.artifact))
                put("type", JsonPrimitive(peer.type))
                put("tokenizer", JsonPrimitive(kit.name))
                put("takes", buildJsonArray { for (one in opened.takes()) add(JsonPrimitive(one)) })
                for ((name, group) in groups) put(name, group.json(kit, shown.toInt()))
            }
            println("peer: $line")
        }
    }
}

private class Difference(val row: Row, val got: List<Int>?, val error: Throwable?)

private class Group(val unsupported: Int, val equal: Int, val wrong: List<Difference>) {
    fun json(kit: Kit, shown: Int) = buildJsonObject {
        put("unsupported", JsonPrimitive(unsupported))
        put("equal", JsonPrimitive(equal))
        put("differ", JsonPrimitive(wrong.count { it.error == null }))
        put("failed", JsonPrimitive(wrong.count { it.error != null }))
        val smallest = wrong.sortedBy { it.row.first.codePointCount(0, it.row.first.length) }.take(shown)
        put("smallest", buildJsonArray { for (one in smallest) add(json(kit, one)) })
    }

    private fun json(kit: Kit, one: Difference): JsonElement = buildJsonObject {
        put("first", JsonPrimitive(one.row.first))
        put("second", JsonPrimitive(one.row.second))
        put("longest", JsonPrimitive(one.row.longest))
        put("wanted", buildJsonArray { for (id in one.row.ids) add(JsonPrimitive(kit.token(id))) })
        put("got", one.got?.let { buildJsonArray { for (id in it) add(JsonPrimitive(kit.token(id))) } } ?: JsonNull)
        put("error", JsonPrimitive(one.error?.toString()))
    }
}

/** Compares ids, and token types where the peer gives them. */
private fun compare(opened: Opened, rows: List<Row>): Group {
    val (able, unable) = rows.partition {
        (opened.pairs || it.second == null) && (opened.cuts || it.longest == null) && (opened.special || !it.special)
    }
    val wrong = able.mapNotNull { row ->
        val found = runCatching { opened.encode(row.first, row.second, row.longest) }
        val got = found.getOrNull()
        val equal = got != null && got.ids == row.ids && (got.types == null || got.types == row.types)
        if (equal) null else Difference(row, got?.ids, found.exceptionOrNull())
    }
    return Group(unable.size, able.size - wrong.size, wrong)
}
