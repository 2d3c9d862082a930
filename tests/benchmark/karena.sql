CREATE TABLE syzbot_bugs (bugId, extid, reportedTime, subsystem, syzbotCrashReport,
    syzbotReproducer, syzbotData);
CREATE TABLE bug_datasets (datasetId, datasetName, description);
CREATE TABLE bug_dataset_members (datasetId, bugId);
CREATE TABLE developer_patches (bugId, fixedTime, patchMessage);
CREATE TABLE patches (patchId, patchContent);
CREATE TABLE agent_configurations (agentConfigId, agent, agentConfigName, model,
    statefulEdit, oracleMode);
CREATE TABLE agent_patches (agentPatchId, patchId, bugId, agentConfigId, unionId, status,
    systemMessage, attrs);
CREATE TABLE patch_crash_resolution_evaluations (evalId, agentPatchId, status,
    kGymEvaluation);
CREATE TABLE patch_localization_evaluations (evalId, agentPatchId, status,
    fileIntersectionSize, fileUnionSize, functionIntersectionSize, functionUnionSize);
CREATE TABLE llm_judge_configurations (judgeId, judgeName);
CREATE TABLE patch_llm_judge_evaluations (judgeId, agentPatchId, status, yesCount, noCount,
    errorCount);
INSERT INTO bug_datasets VALUES (1, 'lk', 'some');
INSERT INTO patches VALUES (1, 'diff'), (2, ''), (3, 'other');
INSERT INTO agent_configurations VALUES (1, 'mini', 'c', 'gemini', 1, 0);
INSERT INTO patch_localization_evaluations VALUES (1, 11, 'success', 1, 2, 0, 0);
INSERT INTO llm_judge_configurations VALUES (1, 'flash');
INSERT INTO patch_llm_judge_evaluations VALUES (1, 11, 'success', 5, 3, 1);
INSERT INTO patch_crash_resolution_evaluations VALUES
    (1, 11, 'success', 'reproduced'), (2, 11, 'success', 'notReproduced'),
    (3, 13, 'error', NULL), (4, 14, 'success', 'compilationError');
