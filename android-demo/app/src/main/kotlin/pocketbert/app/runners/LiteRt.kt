package pocketbert.app.runners

import com.google.ai.edge.litert.Accelerator
import com.google.ai.edge.litert.CompiledModel
import com.google.ai.edge.litert.Environment
import com.google.ai.edge.litert.LiteRtException
import com.google.ai.edge.litert.TensorBuffer
import pocketbert.app.CopiedModels
import pocketbert.core.contract.Function
import pocketbert.core.contract.Model
import pocketbert.core.contract.PaddedRow
import pocketbert.core.model.Runner
import pocketbert.core.model.RunnerFailed
import pocketbert.core.model.RunnerOptions
import pocketbert.core.model.RunnerRefused
import pocketbert.core.model.Runtime
import java.io.IOException

/**
 * LiteRT's compiled models: one entry point a length, on the CPU by XNNPACK or on the GPU.
 *
 * A file is mapped from a copy outside of the APK. Opened as an asset it would be copied into memory, each time
 * (`litert_compiled_model_jni.cc` of v2.2.0: `OwningBufferRef`), and runs from a pushed file would need less than others.
 */
class LiteRt(private val copies: CopiedModels) : Runtime {
    override val name = "LiteRT"
    override val version = VERSION
    override val backend = "litert"

    // One a process: a model without makes its own, which looks for the GPU's libraries again.
    private val environment by lazy { Environment.create() }

    override fun open(model: Model, options: RunnerOptions): Runner {
        val units = options.computeUnits ?: model.computeUnits.first()
        val accelerator = UNITS[units]
            ?: throw RunnerRefused("LiteRT has no compute units $units here; it has ${UNITS.keys.joinToString()}")
        val chosen = CompiledModel.Options(accelerator)
        if (accelerator == Accelerator.CPU) {
            // Several entry points share their weights: without a cache each packs its own copy for XNNPACK.
            chosen.cpuOptions = CompiledModel.CpuOptions(numThreads = options.threads, xnnPackWeightCachePath = IN_MEMORY)
        }
        return try {
            if (accelerator != Accelerator.CPU && accelerator !in environment.getAvailableAccelerators()) {
                throw RunnerRefused("LiteRT finds no $units on this phone")
            }
            val file = model.onDisk ?: copies.file(model)
            LiteRtRunner(CompiledModel.create(file.path, chosen, environment), model, units)
        } catch (error: IOException) {
            throw RunnerFailed("${model.file} cannot be copied out of the app: ${error.message}", error)
        } catch (error: LiteRtException) {
            throw RunnerFailed("LiteRT cannot open ${model.file} on $units: ${error.message}", error)
        } catch (error: LinkageError) {
            throw RunnerFailed("LiteRT's library cannot be loaded: ${error.message}", error)
        }
    }

    companion object {
        /** Of the library that the app is built with; it does not tell itself. As in `gradle/libs.versions.toml`. */
        const val VERSION = "2.2.0"

        /**
         * No NPU: asked for alone it silently gets the CPU beside it (`Model.kt` of v2.2.0), and nothing in the Kotlin API says
         * which of the two has run an operation.
         */
        private val UNITS = mapOf("CPU" to Accelerator.CPU, "GPU" to Accelerator.GPU)

        /** XNNPACK's name for a cache that is no file. */
        private const val IN_MEMORY = ":memory:"
    }
}

/**
 * Weights are packed when a model is compiled (`xnn_create_runtime_v4` in `xnnpack_delegate.cc`), buffers are made here; the
 * memory of an entry point is planned in its first run (`AllocateTensors` in `compiled_model.cc`), and no call asks for that
 * alone.
 */
private class LiteRtRunner(private val compiled: CompiledModel, model: Model, private val units: String) : Runner {
    private class Buffers(val inputs: Map<String, TensorBuffer>, val outputs: Map<String, TensorBuffer>)

    private val buffers = try {
        model.signature.functions.associate { it.name to buffers(it) }
    } catch (error: LiteRtException) {
        compiled.close()
        throw error
    }
    override val delegate get() = if (units == "CPU") "XNNPACK" else units

    /**
     * Without the CPU among the accelerators a model is compiled only where others take all its operations ("Some ops are not
     * accelerated", `compiled_model.cc` of v2.2.0); with it alone no other is applied.
     */
    override val shareByUnit = mapOf(units to 1.0)

    // XNNPACK's pool belongs to the compiled model.
    override val poolThreads: Int? = null

    override fun run(row: PaddedRow): Map<String, FloatArray> = try {
        val (inputs, outputs) = buffers.getValue(row.function.name).let { it.inputs to it.outputs }
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
