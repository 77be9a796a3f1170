package pocketbert.app.runners

import android.content.res.AssetManager
import com.google.ai.edge.litert.Accelerator
import com.google.ai.edge.litert.CompiledModel
import com.google.ai.edge.litert.LiteRtException
import com.google.ai.edge.litert.TensorBuffer
import pocketbert.app.AssetFiles
import pocketbert.core.contract.Function
import pocketbert.core.contract.Model
import pocketbert.core.contract.PaddedRow
import pocketbert.core.model.Runner
import pocketbert.core.model.RunnerFailed
import pocketbert.core.model.RunnerOptions
import pocketbert.core.model.RunnerRefused
import pocketbert.core.model.Runtime

/**
 * LiteRT's compiled models: one entry point a length, on the CPU by XNNPACK, on the GPU, or on an NPU. The file is mapped
 * where it lies in the APK.
 */
class LiteRt(private val assets: AssetManager) : Runtime {
    override val name = "LiteRT"
    override val version = VERSION
    override val backend = "litert"

    override fun open(model: Model, options: RunnerOptions): Runner {
        val units = options.computeUnits ?: UNITS.first()
        val accelerator = Accelerator.entries.firstOrNull { it.name == units && units in UNITS }
            ?: throw RunnerRefused("there are no compute units $units; there are $UNITS")
        val chosen = CompiledModel.Options(accelerator)
        // Several entry points share their weights: without a cache each packs its own copy for XNNPACK.
        chosen.cpuOptions = CompiledModel.CpuOptions(numThreads = options.threads, xnnPackWeightCachePath = IN_MEMORY)
        return try {
            val pushed = model.onDisk
            val compiled = if (pushed != null) {
                CompiledModel.create(pushed.path, chosen)
            } else {
                CompiledModel.create(assets, "${AssetFiles.ROOT}/${model.file}", chosen)
            }
            LiteRtRunner(compiled, units)
        } catch (error: LiteRtException) {
            throw RunnerFailed("LiteRT cannot open ${model.file} on $units: ${error.message}", error)
        } catch (error: LinkageError) {
            throw RunnerFailed("LiteRT's library cannot be loaded: ${error.message}", error)
        }
    }

    companion object {
        /** Of the library that the app is built with; it does not tell itself. As in `gradle/libs.versions.toml`. */
        const val VERSION = "2.1.5"
        val UNITS = listOf("CPU", "GPU", "NPU")

        /** XNNPACK's name for a cache that is no file. */
        private const val IN_MEMORY = ":memory:"
    }
}

private class LiteRtRunner(private val compiled: CompiledModel, private val units: String) : Runner {
    private class Buffers(val inputs: Map<String, TensorBuffer>, val outputs: Map<String, TensorBuffer>)

    private val buffers = HashMap<String, Buffers>()
    override val delegate get() = if (units == "CPU") "XNNPACK" else units
    override val operations: Pair<Int, Int>? = null

    override fun run(row: PaddedRow): Map<String, FloatArray> = try {
        val (inputs, outputs) = buffers.getOrPut(row.function.name) { buffers(row.function) }.let { it.inputs to it.outputs }
        row.inputs.forEach { (name, values) -> inputs.getValue(name).writeInt(values) }
        compiled.run(inputs, outputs, row.function.name)
        outputs.mapValues { it.value.readFloat() }
    } catch (error: LiteRtException) {
        throw RunnerFailed("LiteRT cannot run ${row.function.name}: ${error.message}", error)
    }

    private fun buffers(function: Function) = Buffers(
        function.inputs.associate { it.name to compiled.createInputBuffer(it.name, function.name) },
        function.outputs.associate { it.name to compiled.createOutputBuffer(it.name, function.name) },
    )

    override fun close() {
        buffers.values.forEach { both -> (both.inputs.values + both.outputs.values).forEach(TensorBuffer::close) }
        compiled.close()
    }
}
