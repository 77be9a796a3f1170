package pocketbert.core.endtoend

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.float
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import pocketbert.core.contract.Model
import pocketbert.core.contract.PaddedRow
import pocketbert.core.model.Runner
import pocketbert.core.model.RunnerFailed
import pocketbert.core.model.RunnerOptions
import pocketbert.core.model.RunnerRefused
import pocketbert.core.model.Runtime
import java.io.BufferedReader
import java.io.File
import java.io.IOException
import java.net.StandardProtocolFamily
import java.net.UnixDomainSocketAddress
import java.nio.ByteBuffer
import java.nio.channels.Channels
import java.nio.channels.SocketChannel

/** The real LiteRT or ExecuTorch, in a Python process behind a socket (`tests/apps/runtime_server.py`). */
class SocketRuntime(private val socket: File, override val backend: String, private val versions: Map<String, String>) : Runtime {
    override val name = if (backend == "litert") "LiteRT" else "ExecuTorch"
    override val version get() = versions.getValue(backend)

    /** The connection is closed after so many runs. */
    var hangsUpAfter: Int? = null

    override fun open(model: Model, options: RunnerOptions): Runner {
        val units = options.computeUnits ?: model.computeUnits.first()
        if (units != "CPU") throw RunnerRefused("there are no compute units $units here; there is the CPU")
        return SocketRunner(socket, model, options.threads, hangsUpAfter)
    }
}

private class SocketRunner(socket: File, model: Model, threads: Int, private var left: Int?) : Runner {
    private val channel = SocketChannel.open(StandardProtocolFamily.UNIX).apply { connect(UnixDomainSocketAddress.of(socket.toPath())) }
    private val answers: BufferedReader = Channels.newReader(channel, Charsets.UTF_8).buffered()
    private val opened = ask(
        JsonObject(mapOf("folder" to JsonPrimitive(model.entry.folder), "threads" to JsonPrimitive(threads))),
    )
    override val delegate: String get() = opened.getValue("delegate").jsonPrimitive.content
    override val shareByUnit = mapOf("CPU" to 1.0)

    // Each connection is a process of its own.
    override val poolThreads: Int? = null

    override fun run(row: PaddedRow): Map<String, FloatArray> {
        left = left?.let { it - 1 }
        if (left == 0) channel.close()
        val inputs = row.inputs.mapValues { (_, values) -> JsonArray(values.map { JsonPrimitive(it) }) }
        val asked = JsonObject(mapOf("function" to JsonPrimitive(row.function.name), "inputs" to JsonObject(inputs)))
        return ask(asked).getValue("outputs").jsonObject.mapValues { (_, values) ->
            values.jsonArray.map { it.jsonPrimitive.float }.toFloatArray()
        }
    }

    private fun ask(document: JsonObject): JsonObject {
        val line = try {
            val bytes = ByteBuffer.wrap("$document\n".toByteArray())
            while (bytes.hasRemaining()) channel.write(bytes)
            answers.readLine() ?: throw RunnerFailed("the connection to the runtime ended")
        } catch (error: IOException) {
            throw RunnerFailed("the connection to the runtime broke: $error", error)
        }
        val answer = Json.parseToJsonElement(line).jsonObject
        answer["error"]?.let { throw RunnerFailed(it.jsonPrimitive.content) }
        return answer
    }

    override fun close() = channel.close()
}
