@file:Suppress("UNUSED_PARAMETER")

package com.google.ai.edge.litert

import android.content.res.AssetManager

private fun declared(): Nothing = error("LiteRT is not in this build; Gradle's has it")

class LiteRtException(message: String) : Exception(message)

enum class Accelerator { NONE, CPU, GPU, NPU }

open class JniHandle : AutoCloseable {
    override fun close() = declared()
}

class TensorBuffer private constructor() : JniHandle() {
    fun writeInt(data: IntArray): Unit = declared()

    fun readFloat(): FloatArray = declared()
}

class CompiledModel private constructor() : JniHandle() {
    data class CpuOptions(val numThreads: Int? = null, val xnnPackFlags: Int? = null, val xnnPackWeightCachePath: String? = null)

    class Options(vararg val accelerators: Accelerator) {
        var cpuOptions: CpuOptions? = null
    }

    fun createInputBuffer(inputName: String, signature: String? = null): TensorBuffer = declared()

    fun createOutputBuffer(outputName: String, signature: String? = null): TensorBuffer = declared()

    fun run(inputs: Map<String, TensorBuffer>, outputs: Map<String, TensorBuffer>, signature: String? = null): Unit = declared()

    companion object {
        fun create(assetManager: AssetManager, assetName: String, options: Options): CompiledModel = declared()

        fun create(filePath: String, options: Options): CompiledModel = declared()
    }
}
